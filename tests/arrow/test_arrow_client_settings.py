"""Tests the options `rocketmq.client.*`, which pass settings of the client to reads and writes."""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pyarrow as pa
import pytest

from gantrymq.arrow import read_topic, write_topic
from gantrymq.arrow.client_settings import PREFIX, READ_SETTINGS, WRITE_SETTINGS, NewTopic
from gantrymq.arrow.option_values import Values
from gantrymq.arrow.options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions, WriteOptions
from gantrymq.broker.tables.topics import UNIT_FLAG
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.options import ConsumerOptions
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import CompressionError, ConfigError
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

CLUSTER = {"nameServer": "127.0.0.1:9876"}


def test_names_and_defaults_are_those_of_the_client() -> None:
    of_consumer = {f"{PREFIX}{each.name}": each.default for each in fields(ConsumerOptions)}
    of_producer = {f"{PREFIX}{each.name}": each.default for each in fields(ProducerOptions)}
    read = ReadOptions.of(Values(CLUSTER | {"subscribe": "orders"}, READ_OPTIONS, "read"))
    assert {name: of_consumer[name] for name in READ_SETTINGS} == {f"{PREFIX}max_body_size": read.max_body_size}
    written = WriteOptions.of(Values(CLUSTER, WRITE_OPTIONS, "write")).new_topic
    assert written == NewTopic()
    defaults = {f"{PREFIX}{name}": value for name, value in written.arguments().items()}
    assert {name: of_producer[name] for name in WRITE_SETTINGS} == defaults


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("group", "'rocketmq.client.group': use the option consumerGroup instead"),
        ("Credentials", "use the option accessKey and secretKey instead"),
        ("linger", "this setting of the client has no meaning in a read, leave it out"),
        ("default_topic_queue_nums", "no meaning in a read"),
        ("max_size", "no option 'rocketmq.client.max_size': the client settings of a read are "
         "rocketmq.client.max_body_size"),
    ],
)  # fmt: skip
def test_other_settings_are_refused_with_the_remedy(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        Values(CLUSTER | {f"{PREFIX}{name}": "1"}, READ_OPTIONS, "read", WRITE_OPTIONS)


def test_settings_of_a_write_are_refused_with_the_remedy() -> None:
    known = ", ".join(sorted(WRITE_SETTINGS))
    with pytest.raises(ConfigError, match=f"the client settings of a write are {known}$"):
        Values(CLUSTER | {f"{PREFIX}queues": "1"}, WRITE_OPTIONS, "write")
    with pytest.raises(ConfigError, match="use the option retryTimeoutMs instead"):
        Values(CLUSTER | {f"{PREFIX}retry_times": "1"}, WRITE_OPTIONS, "write")
    # A write has no option for its group.
    with pytest.raises(ConfigError, match="this setting of the client has no meaning in a write"):
        Values(CLUSTER | {f"{PREFIX}group": "g"}, WRITE_OPTIONS, "write")
    with pytest.raises(ConfigError, match="default_topic_queue_nums: 0 is less than 1"):
        WriteOptions.of(Values(CLUSTER | {f"{PREFIX}default_topic_queue_nums": "0"}, WRITE_OPTIONS, "write"))
    given = CLUSTER | {"topic": "orders", "exactlyOnce": "true", "ROCKETMQ.CLIENT.UNIT_MODE": "true"}
    with pytest.raises(ConfigError, match=r"rocketmq.client.unit_mode has no meaning with exactlyOnce: the topic must"):
        WriteOptions.of(Values(given, WRITE_OPTIONS, "write"))


@pytest.mark.parametrize("columns", [["body"], ["body", "tags"]], ids=["plain", "with a column"])
def test_a_write_sets_the_queues_of_a_new_topic(cluster: EmbeddedCluster, columns: list[str]) -> None:
    rows = pa.table({"body": ["one", "two"], "tags": ["a", "b"]}).select(columns)
    topic = f"new-{len(columns)}"
    settings = {f"{PREFIX}default_topic_queue_nums": "2", f"{PREFIX}unit_mode": "true"}
    assert write_topic(cluster.name_server, topic, rows, options=settings) == 2

    assert write_topic(cluster.name_server, f"{topic}-default", rows) == 2

    async def configs() -> list[tuple[int, bool]]:
        async with AdminClient(cluster.name_server) as admin:
            found = [await admin.topic_config(cluster.brokers[0], name) for name in (topic, f"{topic}-default")]
        return [(config.write_queue_nums, bool(config.topic_sys_flag & UNIT_FLAG)) for config in found]

    assert asyncio.run(configs()) == [(2, True), (4, False)]


def test_a_read_limits_the_decompressed_body(cluster: EmbeddedCluster) -> None:
    with SyncProducer(Producer(cluster.name_server, "test", compress_over=1)) as producer:
        producer.send(Message("compressed", bytes(10_000)))
    limits = {f"{PREFIX}max_body_size": "9999"}
    with pytest.raises(CompressionError, match="9999"):
        read_topic(cluster.name_server, "compressed", options=limits).read_all()
    rows = read_topic(cluster.name_server, "compressed", options=limits | {"corruptBodies": "null"}).read_all()
    assert rows.column("body").to_pylist() == [None]
    limits = {f"{PREFIX}max_body_size": "10000"}
    assert read_topic(cluster.name_server, "compressed", options=limits).read_all().column("body").to_pylist() == [
        bytes(10_000)
    ]
