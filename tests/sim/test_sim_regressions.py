"""sim/regressions.py: seeds that failed in the past."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sim.regressions import REGRESSIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seed", REGRESSIONS[name]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
