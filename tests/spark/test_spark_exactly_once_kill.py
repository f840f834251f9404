"""A stream with exactlyOnce whose driver is killed at random: each row once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from exactly_once_support import driver, numbers
from spark_support import send_numbers
from waiting import wait_until

from gantrymq.testing.embedded import EmbeddedCluster

#: A micro-batch has so many messages, and there are enough for eight of them between two kills.
OF_A_BATCH = 500
OF_A_KILL = 8 * OF_A_BATCH
#: A Spark that starts on a busy machine takes a minute or two, and some seconds for each micro-batch.
WAIT_S = 240.0
END_S = 600.0


def batches_begun(directory: Path) -> int:
    offsets = directory / "checkpoint" / "offsets"
    return sum(path.name.isdecimal() for path in offsets.iterdir()) if offsets.is_dir() else 0


@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, 20])
def test_a_stream_whose_driver_is_killed(
    cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path, kills: int
) -> None:
    source, target, count = new_topic(2), new_topic(2), kills * OF_A_KILL
    send_numbers(cluster, source, range(count))
    arguments = ["stream", cluster.name_server, target, source, str(OF_A_BATCH), tmp_path]
    chance = random.Random()
    killed = 0
    for _ in range(kills):
        before = batches_begun(tmp_path)
        with driver(arguments, tmp_path) as process:

            def has_gone_on(process: subprocess.Popen[bytes] = process, before: int = before) -> bool:
                assert process.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
                return batches_begun(tmp_path) > before

            wait_until(has_gone_on, WAIT_S)
            # Anywhere in a micro-batch: not a wait for a state, but where in it the kill hits.
            time.sleep(chance.uniform(0, 0.5))
            killed += process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
    with driver(arguments, tmp_path) as process:
        assert process.wait(END_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert killed == kills
    found = Counter(numbers(cluster.name_server, target))
    assert [number for number, times in found.items() if times > 1] == []
    assert len(found) == count
