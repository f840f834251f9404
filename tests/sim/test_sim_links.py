"""Replication under simulated faults (links_run.py and failovers_run.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: The script, and a part of its output if the planted bug is present.
RUNS = pytest.mark.parametrize(
    ("script", "found"), [("links_run.py", "was acknowledged"), ("failovers_run.py", "the logs differ")]
)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, HERE / script, *arguments], capture_output=True, text=True, check=False, timeout=390
    )


def seeds(begin: int, end: int) -> list[str]:
    return [str(seed) for seed in range(begin, end)]


@RUNS
def test_what_was_acknowledged_is_there_and_logs_are_equal(script: str, found: str) -> None:
    done = run(script, *seeds(0, 3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
@RUNS
@pytest.mark.nightly
def test_more_faults(script: str, found: str) -> None:
    done = run(script, *seeds(3, 60))
    assert done.returncode == 0, done.stdout + done.stderr


@RUNS
def test_a_seed_is_the_same_run_each_time(script: str, found: str) -> None:
    """The run is the same alone and after another one."""
    alone, second = run(script, "5"), run(script, "4", "5")
    assert alone.stdout
    assert second.stdout.splitlines()[1] == alone.stdout.strip()


@RUNS
def test_planted_bug_is_found(script: str, found: str) -> None:
    done = run(script, "--planted", *seeds(0, 2))
    assert found in done.stdout
