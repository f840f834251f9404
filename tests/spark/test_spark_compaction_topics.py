"""Tests reads of a compaction topic, whose compaction leaves gaps between the offsets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from spark_support import WAIT_S
from wait_until import wait_until

from gantrymq import AdminClient, KeyValue
from gantrymq.arrow import read_topic, write_topic
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark

TOPIC = "settings"
COUNT = 200
PAGE = Path(__file__).parent.parent.parent / "docs" / "spark" / "read.md"
#: Small files, which the broker compacts every 200 ms.
SMALL = {
    "compaction_mapped_file_size": 4600,
    "compaction_cq_mapped_file_size": 20 * 46,
    "compaction_schedule_internal": 200,
}


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provides a cluster whose topic has been compacted. Key `gone` is deleted, and `lonely` has one message."""

    async def create(name_server: str) -> None:
        async with AdminClient(name_server) as admin:
            await admin.ensure_topic(TOPIC, queues=1, attributes={"cleanup.policy": "COMPACTION"})
        async with KeyValue(name_server, TOPIC) as table:
            await table.put("gone", b"here")
            await table.delete("gone")

    keys = ["lonely" if n == 3 else f"key-{n % 5}" for n in range(COUNT)]
    rows = pa.table({"body": [str(n) for n in range(COUNT)], "keys": keys})
    with EmbeddedCluster(directory=tmp_path_factory.mktemp("compaction"), **SMALL) as cluster:
        asyncio.run(create(cluster.name_server))
        write_topic(cluster.name_server, TOPIC, rows)
        compacted = {"compacted": "true"}
        wait_until(lambda: read_topic(cluster.name_server, TOPIC, options=compacted).read_all().num_rows < COUNT // 2)
        yield cluster.name_server


def test_the_documented_read_of_the_latest_state(spark: SparkSession, name_server: str) -> None:
    (snippet,) = re.findall(r"^## Latest state\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, DataFrame] = {"spark": spark}  # type: ignore[dict-item]
    exec(compile(snippet.replace("127.0.0.1:9876", name_server), PAGE.name, "exec"), names)
    found = {row.keys: bytes(row.body) for row in names["state"].collect()}
    assert found == {"lonely": b"3"} | {f"key-{n % 5}": b"%d" % n for n in range(COUNT - 5, COUNT)}


def test_gaps_without_the_option_are_lost_messages(spark: SparkSession, name_server: str) -> None:
    rows = spark.read.format("rocketmq").options(nameServer=name_server, subscribe=TOPIC, retryTimeoutMs="500").load()
    with pytest.raises(Exception, match="failOnDataLoss"):
        rows.collect()


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_that_lags_behind_a_compaction(
    spark: SparkSession, name_server: str, tmp_path: Path, fails: bool
) -> None:
    options = {"nameServer": name_server, "subscribe": TOPIC, "retryTimeoutMs": "500", "startingOffsets": "earliest"}
    rows = spark.readStream.format("rocketmq").options(**options, failOnDataLoss=str(fails).lower()).load()
    seen: list[bytes] = []
    query = (
        rows.select("body")
        .writeStream.foreachBatch(lambda batch, _: seen.extend(bytes(row.body) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if fails:
        with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
            query.awaitTermination(WAIT_S)
    else:
        assert query.awaitTermination(WAIT_S)
        assert seen[-5:] == [b"%d" % n for n in range(COUNT - 5, COUNT)]
