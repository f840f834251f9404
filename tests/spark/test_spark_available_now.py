"""Tests that a Trigger.AvailableNow run fails with a reason if a server dies, and that the next run completes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mortal_cluster import MortalCluster
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from spark_support import WAIT_S, needs_admission_control

pytestmark = [pytest.mark.spark, pytest.mark.slow, needs_admission_control]

ROWS = 400


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalCluster]:
    with MortalCluster(tmp_path / "cluster") as cluster:
        yield cluster


def _lose_broker(cluster: MortalCluster) -> None:
    cluster.stop_broker("broker-b")


def _lose_name_server(cluster: MortalCluster) -> None:
    cluster.stop_name_server()


def _broker_comes_back(cluster: MortalCluster) -> None:
    cluster.start_broker("broker-b")


def _name_server_comes_back(cluster: MortalCluster) -> None:
    """Restarts the brokers, so that they register again. A NameServer that waits for its brokers would do as well."""
    for name in sorted(cluster.alive):
        cluster.stop_broker(name)
    cluster.start_name_server()
    for name in ("broker-a", "broker-b"):
        cluster.start_broker(name)


@pytest.mark.parametrize(
    ("lose", "come_back", "reason"),
    [
        (_lose_broker, _broker_comes_back, "broker-b"),
        (_lose_name_server, _name_server_comes_back, "connect"),
    ],
    ids=["broker", "NameServer"],
)
@pytest.mark.parametrize("limit", ["100", None], ids=["between micro-batches", "in a micro-batch"])
def test_a_run_fails_and_the_next_one_completes_it(
    spark: SparkSession,
    mortal: MortalCluster,
    tmp_path: Path,
    lose: Callable[[MortalCluster], None],
    come_back: Callable[[MortalCluster], None],
    reason: str,
    limit: str | None,
) -> None:
    topic = "orders"
    mortal.create_topic(topic)
    mortal.send(topic, range(ROWS))
    is_whole = limit is None
    lost = []

    def write(rows: DataFrame, batch: int) -> None:
        if is_whole and not lost:
            # The tasks of this micro-batch have not pulled yet.
            lost.append(batch)
            lose(mortal)
        rows.write.mode("overwrite").parquet(f"{tmp_path}/table/batch={batch}")
        if not lost:
            lost.append(batch)
            lose(mortal)

    def run() -> None:
        options = {
            "nameServer": mortal.name_server,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "retryTimeoutMs": "1500",
        }
        if limit is not None:
            options["maxOffsetsPerTrigger"] = limit
        rows = spark.readStream.format("rocketmq").options(**options).load()
        numbers = rows.selectExpr("CAST(CAST(body AS STRING) AS INT) AS number")
        query = (
            numbers.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    with pytest.raises(StreamingQueryException, match=reason):
        run()
    assert lost == [0]
    come_back(mortal)
    # The next run also reads messages that arrived in the meantime.
    mortal.send(topic, range(ROWS, ROWS + 40))
    run()
    found = spark.read.parquet(f"{tmp_path}/table").collect()
    assert sorted(row.number for row in found) == list(range(ROWS + 40))
