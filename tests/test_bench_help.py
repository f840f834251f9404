"""Tests that the commands in bench/README.md use options of bench/run.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench"


def test_documented_options_exist() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "run.py", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"COLUMNS": "500"},
    )
    commands = re.findall(r"^    \./dev bench(.*?)(?:#.*)?$", (BENCH / "README.md").read_text(), re.MULTILINE)
    assert len(commands) >= 4
    for option in re.findall(r"--[\w-]+", " ".join(commands)):
        assert option in done.stdout
    table = (BENCH / "README.md").read_text().partition("| `--only` |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"^\| ([a-z-]+) \|", table, re.MULTILINE))
    known = re.search(r"--only KIND \[KIND \.\.\.\]\s+([a-z, -]+) \(all\)", done.stdout)
    assert known is not None
    assert documented == set(re.findall(r"[a-z-]+", known[1]))
