"""Tests of bodySchema=infer: the fields of JSON bodies are derived from a sample."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from gantrymq.arrow.samples import newest_bodies, stored_bodies
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError, ConfigError
from gantrymq.protocol.message import Message
from gantrymq.spark.bodies.body_format import BodyOptions
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.store.options import StoreOptions
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
FIELDS = "id BIGINT, items ARRAY<STRUCT<name: STRING, count: BIGINT>>"
INFER = {"bodyformat": "json", "bodyschema": "infer"}


def order(number: int) -> bytes:
    return json.dumps({"id": number, "items": [{"name": "tea", "count": number}]}).encode()


def send(cluster: EmbeddedCluster, topic: str, *bodies: bytes, tags: str | None = None) -> None:
    async def send() -> None:
        async with Producer(cluster.name_server, "inference") as producer:
            for body in bodies:
                await producer.send(Message(topic, body, tags=tags))

    asyncio.run(send())


def options_of(cluster: EmbeddedCluster, topic: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": cluster.name_server, "subscribe": topic} | INFER | more)


def body_of(options: ReadOptions | StoreOptions) -> BodyOptions:
    assert options.body is not None
    return options.body


def test_the_newest_messages_of_each_queue(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send(cluster, topic, *[b'{"old": 1}'] * 8)
    send(cluster, topic, *map(order, range(10)))
    # The producer alternates between the two queues.
    assert set(newest_bodies(options_of(cluster, topic), 8)) <= set(map(order, range(10)))
    assert len(newest_bodies(options_of(cluster, topic), 8)) == 8
    assert len(newest_bodies(options_of(cluster, topic), 1000)) == 18
    filled = body_of(options_of(cluster, topic)).with_sample(newest_bodies(options_of(cluster, topic), 8), "it")
    assert not filled.is_inferred
    assert filled.column_type() == f"STRUCT<{FIELDS}>"


def test_filters_apply_to_the_sample(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send(cluster, topic, order(1), tags="orders")
    send(cluster, topic, b'{"other": 1}', tags="others")
    assert newest_bodies(options_of(cluster, topic, tags="orders"), 10) == [order(1)]
    assert newest_bodies(options_of(cluster, topic, startingoffsets="latest"), 10) == []


def test_samples_without_fields(caplog: pytest.LogCaptureFixture) -> None:
    body = body_of(StoreOptions.parse({"path": "/data"} | INFER))
    with pytest.raises(ClientError, match="the topic has no message"):
        body.with_sample([], "the topic")
    with pytest.raises(ClientError, match="none of 2 messages of the topic"):
        body.with_sample([b"tea", b"{}"], "the topic")
    body.with_sample([b"tea", b'{"id": 1}', b'{"id": "x"}', b'{"id": 2}'], "the topic")
    assert "1 of 4 bodies are not JSON objects" in caplog.text
    assert "several types in id: 2 of type number, 1 of type string" in caplog.text


def test_options() -> None:
    read = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}
    for wrong, problem in [
        ({"bodyformat": "avro"}, "infer needs bodyFormat json"),
        ({"schema.registry.url": "http://127.0.0.1:1"}, "no meaning with schema.registry.url"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            ReadOptions.parse(read | INFER | wrong)
        with pytest.raises(ConfigError, match=problem):
            StoreOptions.parse({"path": "/data"} | INFER | wrong)
    with pytest.raises(ConfigError, match="no meaning in a write"):
        WriteOptions.parse({"nameserver": "127.0.0.1:9876", "topic": "orders"} | INFER)


@pytest.mark.spark
def test_in_spark(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(1)
    send(cluster, topic, order(1), order(2), b"none")
    given = {"nameServer": cluster.name_server, "subscribe": topic, "bodyFormat": "json", "bodySchema": "infer"}
    df = spark.read.format("rocketmq").options(**given, corruptBodies="null").load()
    assert (
        df.schema["value"].dataType.simpleString() == "struct<id:bigint,items:array<struct<name:string,count:bigint>>>"
    )
    rows = df.where("bodyError IS NULL").selectExpr("value.id", "value.items[0].name AS name").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "tea"), (2, "tea")]

    stream = spark.readStream.format("rocketmq").options(**given).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(
        PySparkException, match="infer is for batch reads: set the DDL that 'gantry schema infer' writes"
    ):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
def test_files_of_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send(cluster, "others", b"tea")
        send(cluster, "orders", *map(order, range(5)))
    path = str(tmp_path / "broker-a")

    def read(topic: str) -> DataFrame:
        reader = spark.read.format("rocketmq-store").options(subscribe=topic, bodyFormat="json", bodySchema="infer")
        return reader.load(path)

    assert sorted(row.id for row in read("orders").select("value.id").collect()) == list(range(5))
    assert len(stored_bodies(StoreOptions.parse({"path": path, "subscribe": "orders"}), 3)) == 3
    with pytest.raises(PySparkException, match=r"none of 1 messages of .*broker-a is a JSON object"):
        read("others")
