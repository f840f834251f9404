"""Replication's links under simulated faults; see links_run.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("links_run.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, RUN, *arguments], capture_output=True, text=True, check=False, timeout=300)


def seeds(begin: int, end: int) -> list[str]:
    return [str(seed) for seed in range(begin, end)]


def test_slave_has_what_it_acknowledged_and_all_in_the_end() -> None:
    done = run(*seeds(0, 8))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 8


@pytest.mark.slow
def test_more_faults() -> None:
    done = run(*seeds(8, 100))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_run_each_time() -> None:
    """Alone, and after another one."""
    alone, second = run("5"), run("4", "5")
    assert alone.stdout
    assert second.stdout.splitlines()[1] == alone.stdout.strip()


def test_slave_that_acknowledges_too_early_is_found() -> None:
    done = run("--planted", *seeds(0, 8))
    assert "was acknowledged" in done.stdout
