"""Start position of a group without a committed offset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from inbox import Inbox, queues_of
from wait_until import until

from gantrymq import CONSUME_FROM_LAST_OFFSET
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.consuming.start_position import name_for_brokers
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError
from gantrymq.protocol.message import Message, MessageExt


async def test_a_new_group_begins_at_the_end(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    """The group must not receive old messages, even if the broker still has the first ones in memory."""
    for number in range(8):
        await producer.send(Message(topic, b"old %d" % number))
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="latest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await producer.send(Message(topic, b"new"))
        await until(lambda: inbox.messages)
        # The lag counts from the start position.
        lag = consumer.lag()
        assert sum(lag.values()) == 0
    assert inbox.bodies == [b"new"]


async def test_javas_last_offset_is_what_the_broker_says(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    await producer.send(Message(topic, b"old"))
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from=CONSUME_FROM_LAST_OFFSET)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: inbox.bodies == [b"old"])


async def test_a_time_is_that_time(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await producer.send(Message(topic, b"old"))
    consumer = LitePullConsumer(
        name_server,
        unique,
        auto_commit=False,
        start_from=datetime.now(UTC) + timedelta(minutes=1),
    )
    async with consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        assert [consumer.position(queue) for queue in queues] == [await consumer.end_offset(queue) for queue in queues]
        # No offset is committed, regardless of the broker's start position for new groups.
        assert {await consumer.committed(queue) for queue in queues} == {None}


async def handle(message: MessageExt) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    "make",
    [
        lambda where: PushConsumer("127.0.0.1:1", "group", handle, start_from=where),
        lambda where: LitePullConsumer("127.0.0.1:1", "group", start_from=where),
        lambda where: SimpleConsumer("127.0.0.1:1", "group", start_from=where),
    ],
    ids=["push", "lite", "simple"],
)
@pytest.mark.parametrize("where", ["first", "CONSUME_FROM_FIRST_OFFSET", "", None, 0])
def test_another_word_is_refused(make: Any, where: object) -> None:
    with pytest.raises(ClientError, match=r"must be 'earliest', 'latest', a datetime or CONSUME_FROM_LAST_OFFSET"):
        make(where)


def test_times() -> None:
    with pytest.raises(ClientError, match=r"has no time zone: use datetime.now\(UTC\)"):
        LitePullConsumer("127.0.0.1:1", "group", start_from=datetime(2026, 1, 2))
    with pytest.raises(ClientError, match="a SimpleConsumer can't start at a time: use 'earliest' or 'latest'"):
        SimpleConsumer("127.0.0.1:1", "group", start_from=datetime.now(UTC))


def test_heartbeats_have_javas_words() -> None:
    assert {where: name_for_brokers(where) for where in ("earliest", "latest", CONSUME_FROM_LAST_OFFSET)} == {
        "earliest": "CONSUME_FROM_FIRST_OFFSET",
        "latest": "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET": "CONSUME_FROM_LAST_OFFSET",
    }
    assert name_for_brokers(datetime.now(UTC)) == "CONSUME_FROM_TIMESTAMP"
