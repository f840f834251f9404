"""`format("rocketmq")` with Apache's brokers: a million messages, all columns of Java's messages, and filters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import Sent, produce, sample
from pyspark.sql import DataFrame, SparkSession
from servers import java_broker, java_namesrv

from gantrymq.spark import register, session_builder

sys.path.append(str(Path(__file__).parent.parent / "tests" / "spark"))

from million_support import assert_each_number_once, fill, read_in_batch, stream_with_killed_drivers

pytestmark = pytest.mark.interop(feature="Spark", clients="gantry", servers="java")

HEAP = ["-Xmx512m", "-XX:MaxDirectMemorySize=256m"]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts Apache's NameServer with two of Apache's brokers, and stores a million messages."""
    directory = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        namesrv = java_namesrv(directory / "namesrv")
        stack.callback(namesrv.kill)
        brokers = []
        for name in ("broker-a", "broker-b"):
            broker = java_broker(
                directory / name, namesrv.address, options=HEAP, brokerName=name, enablePropertyFilter="true"
            )
            stack.callback(broker.kill)
            brokers.append(broker.address)
        asyncio.run(fill(namesrv.address, brokers))
        yield namesrv.address


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        session_builder("gantrymq-interop")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@pytest.mark.timeout(600)
def test_a_million_in_batch(spark: SparkSession, name_server: str) -> None:
    assert_each_number_once(read_in_batch(spark, name_server))


@pytest.mark.timeout(600)
def test_a_million_with_killed_drivers(spark: SparkSession, name_server: str, tmp_path: Path) -> None:
    stream_with_killed_drivers(name_server, tmp_path)
    assert_each_number_once(spark.read.schema("number long").parquet(str(tmp_path / "out")))


def test_what_java_sends(spark: SparkSession, name_server: str, topic: str) -> None:
    sent = [*sample(40), Sent(b"compressible " * 2000, tags="big")]
    results = produce(name_server, topic, [message.line() for message in sent])

    def read(**options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", name_server).option("subscribe", topic)
        return reader.option("includeProperties", "true").options(**options).load()

    rows = read().collect()
    # The flag is not a column.
    expected = sorted((message.body, message.tags, message.keys, message.properties) for message in sent)
    assert sorted(map(parts, map(received, rows))) == expected
    assert {row.msgId for row in rows} == {result["msg_id"] for result in results}
    tag = sent[0].tags
    of_tag = sorted(message.body for message in sent if message.tags == tag)
    assert sorted(bytes(row.body) for row in read(tags=tag).collect()) == of_tag
    assert sorted(bytes(row.body) for row in read(sql92=f"TAGS = '{tag}'").collect()) == of_tag
    assert sorted(bytes(row.body) for row in read().where(f"tags = '{tag}'").collect()) == of_tag


def received(row: object) -> Sent:
    return Sent.of_parts(bytes(row.body), row.tags, row.keys, 0, row.properties)


def parts(sent: Sent) -> tuple[object, ...]:
    return sent.body, sent.tags, sent.keys, sent.properties
