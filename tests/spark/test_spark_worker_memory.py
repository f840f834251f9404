"""Tests of the memory that a worker process keeps from task to task. Each test runs in its own process."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import gc
import gantrymq.spark.reader
from gantrymq.spark.worker_memory import tune_worker_memory
from pathlib import Path

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
"""


def printed_by(lines: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", BEGIN + lines], capture_output=True, text=True, timeout=60, check=True)
    return [int(word) for word in done.stdout.split()]


def test_a_collection_looks_at_no_modules() -> None:
    before, after = printed_by("print(len(gc.get_objects())); tune_worker_memory(); print(len(gc.get_objects()))")
    assert before > 20_000
    assert after < 1_000


def test_what_comes_later_is_collected() -> None:
    (collected,) = printed_by("tune_worker_memory(); ring = []; ring.append(ring); del ring; print(gc.collect())")
    assert collected >= 1


def test_later_tasks_take_no_memory() -> None:
    first, later = printed_by(
        "tune_worker_memory(); print(resident()); [tune_worker_memory() for _ in '123']; print(resident())"
    )
    assert later - first < 1024 * 1024
