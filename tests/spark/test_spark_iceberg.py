"""Into Apache Iceberg exactly once, by examples/pipelines/lakehouse_ingest.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_support import kills
from lake_support import COUNT, kill_and_count, needs_lake, send_all

from gantrymq.testing.processes import ProcessCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    needs_lake("iceberg", {version: f"there is no Apache Iceberg for Spark {version}" for version in ("4.2", "4.3")}),
]


@kills
def test_each_message_once(tmp_path: Path, kills: int) -> None:
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(tmp_path / "warehouse"),
    }
    with ProcessCluster(tmp_path / "cluster") as cluster:
        send_all(cluster)
        found = kill_and_count("iceberg", "lake.messages", settings, tmp_path, kills, cluster.namesrv_addr)
    assert found == [str(COUNT), str(COUNT), "0", str(COUNT - 1)]
