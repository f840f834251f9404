"""Tests, without Spark, which messages a batch read skips because of its bounds and the query's conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from spark_support import BULK_TRANSFER, create_topic, send_numbers

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import Message
from gantrymq.spark.datasource import RocketMQDataSource, RocketMQPushdownDataSource
from gantrymq.spark.versions import HAS_FILTERS
from gantrymq.store import message_writer
from gantrymq.testing.embedded import EmbeddedCluster

needs_filters = pytest.mark.skipif(not HAS_FILTERS, reason="Python data sources receive filters from Spark 4.1")
NOON_MS = 1_767_268_800_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, **BULK_TRANSFER) as running:
        create_topic(running, "numbers", 1, brokers=[0])
        send_numbers(running, "numbers", range(10))
        yield running


def pushed(cluster: EmbeddedCluster, column: str, conditions: list[Any], **options: str) -> tuple[list[Any], list[Any]]:
    """Returns the conditions that are left to Spark, and the values of `column` in the rows read."""
    source = RocketMQPushdownDataSource({"nameserver": cluster.name_server, **options})
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(conditions))
    return left, [
        value for part in reader.partitions() for batch in reader.read(part) for value in batch[column].to_pylist()
    ]


def send(cluster: EmbeddedCluster, *messages: Message) -> None:
    async def work() -> None:
        async with Producer(cluster.name_server, "conditions") as producer:
            for message in messages:
                await producer.send(message)

    asyncio.run(work())


@pytest.mark.parametrize(
    "bounds",
    [
        {"startingoffsets": "latest", "endingoffsets": '{"numbers": {"broker-a:0": 5}}'},
        {"startingoffsets": '{"numbers": {"broker-a:0": 5}}', "endingoffsets": "earliest"},
        {"startingoffsets": '{"numbers": {"broker-a:0": -1}}', "endingoffsets": '{"numbers": {"broker-a:0": 5}}'},
        {"startingoffsets": "latest", "endingtimestamp": "1"},
        {"startingoffsets": '{"numbers": {"broker-a:0": 5}}', "endingtimestamp": "1"},
    ],
)
def test_an_end_before_the_start_is_refused(cluster: EmbeddedCluster, bounds: dict[str, str]) -> None:
    source = RocketMQDataSource({"nameserver": cluster.name_server, "subscribe": "numbers"} | bounds)
    with pytest.raises(ConfigError, match=r"broker-a:0 starts at offset .* and ends before"):
        source.reader(source.schema()).partitions()


@needs_filters
def test_a_body_may_be_null() -> None:
    """With corruptBodies=null a body can be null, so Spark must check the condition."""
    from pyspark.sql.datasource import IsNotNull

    source = RocketMQPushdownDataSource({"nameserver": "ns:1", "subscribe": "numbers", "corruptbodies": "null"})
    condition = IsNotNull(("body",))
    assert list(source.reader(source.schema()).pushFilters([condition])) == [condition]


@needs_filters
def test_conditions_are_of_the_rows_that_deduplicate_leaves(cluster: EmbeddedCluster) -> None:
    """A condition must not change which copy of a message is in the read."""
    from pyspark.sql.datasource import GreaterThanOrEqual

    create_topic(cluster, "copies", 1, brokers=[0])
    send(cluster, *(Message("copies", b"one", properties={"GANTRY_ID": "w-0-0-0"}) for _ in range(2)))
    options = {"subscribe": "copies", "deduplicate": "true"}
    condition = GreaterThanOrEqual(("queueOffset",), 1)
    assert pushed(cluster, "queueOffset", [], **options) == ([], [0])
    assert pushed(cluster, "queueOffset", [condition], **options) == ([condition], [0])


@needs_filters
def test_a_clock_that_was_set_back(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes back by 300 ms, or another master's clock is that far behind. All matching rows are found."""
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    create_topic(cluster, "clock", 1, brokers=[0])
    stored = [0, 100, 200, 300, 400, 500, 210, 220, 230, 240, 600, 700]
    now = [NOON_MS]
    with monkeypatch.context() as patch:
        patch.setattr(message_writer, "time", lambda: now[0] / 1000)
        for later_ms in stored:
            now[0] = NOON_MS + later_ms
            send(cluster, Message("clock", b"%d" % later_ms))
    noon_later = datetime.fromtimestamp((NOON_MS + 300) / 1000, UTC)
    _, since = pushed(cluster, "body", [GreaterThanOrEqual(("storeTimestamp",), noon_later)], subscribe="clock")
    assert [int(body) for body in since if int(body) >= 300] == [300, 400, 500, 600, 700]
    _, before = pushed(cluster, "body", [LessThan(("storeTimestamp",), noon_later)], subscribe="clock")
    assert [int(body) for body in before if int(body) < 300] == [0, 100, 200, 210, 220, 230, 240]


@needs_filters
def test_more_tags_than_a_broker_takes(cluster: EmbeddedCluster) -> None:
    from pyspark.sql.datasource import In

    condition = In(("tags",), ("Odd", *(f"another-{n:05}" for n in range(2_000))))
    left, found = pushed(cluster, "tags", [condition], subscribe="numbers")
    assert left == [condition]
    assert found.count("Odd") == 5


@needs_filters
def test_tags_of_messages_that_wait_for_their_time(cluster: EmbeddedCluster) -> None:
    """Queues of delayed messages have delivery times instead of hash codes of tags."""
    from pyspark.sql.datasource import EqualTo

    create_topic(cluster, "late", 1, brokers=[0])
    # Delay level 17 is one hour.
    send(cluster, *(Message("late", tag.encode(), tags=tag, delay_level=17) for tag in ("A", "B")))
    condition = EqualTo(("tags",), "A")
    left, found = pushed(cluster, "tags", [condition], subscribe="SCHEDULE_TOPIC_XXXX")
    assert left == [condition]
    assert "A" in found
