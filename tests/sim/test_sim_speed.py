"""`./dev sim --speed`: both runs succeed and print their CPU times."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_it_measures_two_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--speed"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(
        r"^(.*): (\d+) messages, received (\d+) times, .* simulated seconds a second$", done.stdout, re.M
    )
    (one, sent, received), (four, sent_to_four, received_by_four) = found
    assert (one, four) == ("one group", "four groups")
    assert int(received) == int(sent)
    assert int(received_by_four) == 4 * int(sent_to_four)
