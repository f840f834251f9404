"""Tests the monitoring of a session's queries: metrics over HTTP, progress in a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from spark_support import send_numbers
from wait_until import wait_until

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import decode_messages
from gantrymq.spark.metrics import watch_queries
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark


def test_a_query_is_watched(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, told = new_topic(1), new_topic(1)
    send_numbers(cluster, topic, range(10))
    with pytest.raises(ConfigError, match="go together"):
        watch_queries(spark, topic=told)
    with watch_queries(spark, metrics_port=0, name_server=cluster.name_server, topic=told) as watch:
        source = spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic)
        query = (
            source.options(startingOffsets="earliest", maxOffsetsPerTrigger="10")
            .load()
            .writeStream.format("noop")
            .queryName("watched")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

        def metrics() -> str:
            with urlopen(f"http://127.0.0.1:{watch.metrics_port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        labels = f'{{query="watched",id="{query.id}"'
        wait_until(lambda: f"gantry_spark_query_running{labels}}} 0" in metrics())
        text = metrics()
    assert f"gantry_spark_input_rows_total{labels}}} 10" in text
    assert (f'gantry_spark_lag_messages{labels},topic="{topic}"}} 0' in text) == HAS_ADMISSION_CONTROL

    async def progress() -> dict[str, object]:
        async with ClusterClient([cluster.name_server], 5000) as brokers:
            for queue in await brokers.read_queues(told):
                if await brokers.max_offset(queue):
                    found = await brokers.pull(queue, 0, 1, 100_000, "watch", ("*", "TAG"))
                    return dict(json.loads(next(decode_messages(found.body)).body))
        raise AssertionError("nothing was told")

    assert asyncio.run(progress())["id"] == str(query.id)
