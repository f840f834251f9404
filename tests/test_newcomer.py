"""Tests the steps of tools/newcomer.py in the test environment, without the installation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "newcomer.py"


@pytest.mark.slow
def test_the_path_of_a_newcomer() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--python", sys.executable],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout.startswith("["), done.stderr
    steps = json.loads(done.stdout)
    assert [step["name"] for step in steps] == ["a cluster runs", "first message received", "first test passed"]
    assert [step["at_s"] for step in steps] == sorted(step["at_s"] for step in steps)
