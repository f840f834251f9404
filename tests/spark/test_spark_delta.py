"""Tests exactly-once writes into Delta Lake with examples/pipelines/lakehouse_ingest.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_support import kills
from lake_support import COUNT, kill_and_count, needs_lake, send_all

from gantrymq.testing.processes import ProcessCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600), needs_lake("delta")]


@kills
def test_each_message_once(tmp_path: Path, kills: int) -> None:
    with ProcessCluster(tmp_path / "cluster") as cluster:
        send_all(cluster)
        found = kill_and_count("delta", tmp_path, kills, cluster.namesrv_addr)
    assert found == [str(COUNT), str(COUNT), "0", str(COUNT - 1)]
