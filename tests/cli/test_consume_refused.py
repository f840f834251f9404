"""Tests that `gantry consume` ends at once with the broker's message if the broker rejects its filter."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gantrymq import Message, Producer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.mark.parametrize("group", [[], ["-g", "night-job"]], ids=["all", "group"])
def test_a_wrong_filter(gantry_cluster: EmbeddedCluster, group: list[str]) -> None:
    with SyncProducer(Producer(gantry_cluster.name_server, "test")) as producer:
        producer.send(Message("orders", b"one"))
    command = [sys.executable, "-m", "gantrymq.cli", "consume", "orders", "-n", gantry_cluster.name_server]
    ended = subprocess.run(
        [*command, *group, "--sql", "a = ("], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "SQL92 filter" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout
