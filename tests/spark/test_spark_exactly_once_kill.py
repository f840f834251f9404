"""Tests that a stream with exactlyOnce stores each row once although its driver is killed at random times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from exactly_once_support import driver, numbers
from kill_support import batches_begun, kill_in_a_batch, kills
from spark_support import send_numbers

from gantrymq.testing.embedded import EmbeddedCluster

#: Messages of a micro-batch. There are enough for eight micro-batches between two kills.
OF_A_BATCH = 500
OF_A_KILL = 8 * OF_A_BATCH
END_S = 600.0


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.slow
@kills
def test_a_stream_whose_driver_is_killed(
    cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path, kills: int
) -> None:
    source, target, count = new_topic(2), new_topic(2), kills * OF_A_KILL
    send_numbers(cluster, source, range(count))
    arguments = ["stream", cluster.name_server, target, source, str(OF_A_BATCH), tmp_path]
    log, checkpoint = tmp_path / "driver.log", tmp_path / "checkpoint"
    for _ in range(kills):
        before = batches_begun(checkpoint)
        with driver(arguments, tmp_path) as process:
            kill_in_a_batch(process, log, checkpoint, before, 0.5)
    with driver(arguments, tmp_path) as process:
        assert process.wait(END_S) == 0, log.read_text()[-4000:]
    found = Counter(numbers(cluster.name_server, target))
    assert [number for number, times in found.items() if times > 1] == []
    assert len(found) == count
