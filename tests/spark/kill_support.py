"""Drivers of streams that are killed at random, in the midst of a micro-batch."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from spark_support import WAIT_S
from waiting import wait_until

#: How often a test kills its driver. Those with 20 kills are run by `-m many_kills` alone (conftest.py).
kills = pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.many_kills)])


def batches_begun(checkpoint: Path) -> int:
    offsets = checkpoint / "offsets"
    return sum(path.name.isdecimal() for path in offsets.iterdir()) if offsets.is_dir() else 0


def kill_in_a_batch(
    process: subprocess.Popen[bytes], log: Path, checkpoint: Path, before: int, longest_s: float
) -> None:
    """SIGKILL to a driver and all that it has started, once it has begun more than `before` micro-batches."""

    def has_gone_on() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        return batches_begun(checkpoint) > before

    # After a start and the micro-batch that the last kill left unfinished.
    wait_until(has_gone_on, 3 * WAIT_S)
    # Anywhere in a micro-batch: not a wait for a state, but where in it the kill hits.
    time.sleep(random.uniform(0, longest_s))
    assert process.poll() is None, log.read_text()[-4000:]
    os.killpg(process.pid, signal.SIGKILL)
