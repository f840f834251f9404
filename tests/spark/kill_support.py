"""Kills the drivers of streams at random times within a micro-batch."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from spark_support import WAIT_S
from wait_until import wait_until

#: Number of times that a test kills its driver. Tests with 20 kills run only with `-m many_kills` (conftest.py).
kills = pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.many_kills)])


def batches_begun(checkpoint: Path) -> int:
    offsets = checkpoint / "offsets"
    return sum(path.name.isdecimal() for path in offsets.iterdir()) if offsets.is_dir() else 0


def kill_in_a_batch(
    process: subprocess.Popen[bytes], log: Path, checkpoint: Path, before: int, longest_s: float
) -> None:
    """Sends SIGKILL to a driver's process group after it has begun more than `before` micro-batches."""

    def has_gone_on() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        return batches_begun(checkpoint) > before

    # This includes the start and the micro-batch that the last kill interrupted.
    wait_until(has_gone_on, 3 * WAIT_S)
    # The kill must hit a random point of the micro-batch, so this is not a wait for a state.
    time.sleep(random.uniform(0, longest_s))
    assert process.poll() is None, log.read_text()[-4000:]
    os.killpg(process.pid, signal.SIGKILL)
