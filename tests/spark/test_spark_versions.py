"""Tests of the readers that replace features missing in older versions of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_support import create_topic, send_numbers

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.spark.legacy_stream_reader import LegacyStreamReader
from gantrymq.spark.options import ReadOptions
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]


def test_an_older_spark_is_told_in_one_sentence(tmp_path: Path) -> None:
    """The fake Spark 3.5 has only the version, which is all that the import reads."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"\n')
    source = Path(__file__).parent.parent.parent / "src"
    done = subprocess.run(
        [sys.executable, "-c", "import gantrymq.spark"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: gantrymq.spark needs Spark 4.0 or later, with which Python data sources begin; "
        "this is pyspark 3.5.7"
    )


def reader(cluster: EmbeddedCluster, topic: str, **more: str) -> LegacyStreamReader:
    options = {"nameserver": cluster.name_server, "subscribe": topic, "retrytimeoutms": "3000"} | more
    return LegacyStreamReader(ReadOptions.parse(options, streaming=True), pa.schema([("body", ARROW_TYPES["body"])]))


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def numbers(stream: LegacyStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions = stream.partitions(logged(start), logged(end))
    return sorted(int(n) for p in partitions for batch in stream.read(p) for n in batch.column("body").to_pylist())


def test_limits_are_kept(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(1000))
    stream = reader(cluster, topic, startingoffsets="earliest", maxoffsetspertrigger="400")
    first = stream.latestOffset()
    start = stream.initialOffset()
    seen = numbers(stream, start, first)
    assert len(seen) == 400
    second = stream.latestOffset()
    seen += numbers(stream, first, second)
    assert len(seen) == 800
    stream.stop()

    restarted = reader(cluster, topic, startingoffsets="earliest", maxoffsetspertrigger="400")
    # This call gives the reader its position.
    assert restarted.partitions(logged(second), logged(second)) == []
    third = restarted.latestOffset()
    seen += numbers(restarted, second, third)
    assert sorted(seen) == list(range(1000))
    assert restarted.latestOffset() == logged(third)
    restarted.stop()


def test_a_first_batch_that_failed_begins_where_it_began(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(100))
    stream = reader(cluster, topic)
    start = stream.initialOffset()
    send_numbers(cluster, topic, range(100, 300))
    end = stream.latestOffset()
    stream.stop()
    send_numbers(cluster, topic, range(300, 400))

    restarted = reader(cluster, topic)
    restarted.partitions(logged(end), logged(end))
    moved = restarted.initialOffset()
    assert moved != start
    assert numbers(restarted, moved, end) == list(range(100, 300))
    assert numbers(restarted, end, restarted.latestOffset()) == list(range(300, 400))
    restarted.stop()


def test_a_restarted_stream_takes_in_queues_that_are_new(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    stream = reader(cluster, topic, startingoffsets="earliest")
    end = stream.latestOffset()
    assert numbers(stream, stream.initialOffset(), end) == list(range(200))
    stream.stop()

    create_topic(cluster, topic, 3)
    send_numbers(cluster, topic, range(200, 900))
    restarted = reader(cluster, topic, startingoffsets="latest")
    assert restarted.partitions(logged(end), logged(end)) == []
    assert numbers(restarted, end, restarted.latestOffset()) == list(range(200, 900))
    restarted.stop()


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_the_log_says_what_a_limit_means_with_available_now(
    cluster: EmbeddedCluster, new_topic: NewTopic, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    for options in ({}, {limit.lower(): "100"}):
        stream = reader(cluster, topic, **options)
        stream.latestOffset()
        stream.latestOffset()
        stream.stop()
    said = [record.getMessage() for record in caplog.records if "Trigger.AvailableNow" in record.getMessage()]
    assert len(said) == 1
    assert limit in said[0]
