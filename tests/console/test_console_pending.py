"""Pages of pending messages: delayed and timed messages by due time, and popped messages without an acknowledgement."""

from __future__ import annotations

from typing import Any

import httpx
from console_support import cluster, html_of, json_of, producer, visitor
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.console.queries import delayed_messages
from gantrymq.protocol.bodies.pop import Checkpoint
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import TIMER_DELAY_MS
from gantrymq.sync import SyncProducer
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]


async def test_delayed_messages_by_time(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("awaited", queues=1)
    before = now_ms()
    producer.send(Message("awaited", b"in two hours", delay_level=18))
    producer.send(Message("awaited", b"in an hour", properties={TIMER_DELAY_MS: "3600000"}))
    producer.send(Message("awaited", b"in ten minutes", delay_level=14))

    async def known() -> Any:
        page = await json_of(visitor, "due", topic="awaited")
        return page if len(page["rows"]) == 3 else None

    page = await until(known)
    rows = page["rows"]
    assert [row["row"]["start"] for row in rows] == ["in ten minutes", "in an hour", "in two hours"]
    assert [row["level"] for row in rows] == [14, 0, 18]
    # A slot of the timer is one second long.
    assert before + 3_598_000 <= rows[1]["due_ms"] <= now_ms() + 3_600_000
    assert (page["up_to_ms"], page["partly"], page["unasked"]) == (None, [], [])
    assert "in ten minutes" in await html_of(visitor, "due")
    assert (await json_of(visitor, "due", topic="nobody"))["rows"] == []
    place = rows[0]["row"]
    one = await json_of(
        visitor,
        "message",
        topic=place["topic"],
        broker=place["broker"],
        queue=place["queue_id"],
        offset=place["offset"],
    )
    assert one["body"]["text"] == "in ten minutes"


async def test_a_message_that_was_taken_back(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("regretted", queues=1)
        await admin.update_broker_config(cluster.brokers, {"recallMessageEnable": "true"})

    async def waiting() -> list[str]:
        return [row["row"]["start"] for row in (await json_of(visitor, "due", topic="regretted"))["rows"]]

    async with Producer(cluster.name_server, "regretters") as producer:
        for body in (b"wanted", b"unwanted"):
            result = await producer.send(Message("regretted", body, properties={TIMER_DELAY_MS: "3600000"}))

        async def both() -> bool:
            return sorted(await waiting()) == ["unwanted", "wanted"]

        await until(both)
        assert result.recall_handle is not None
        await producer.recall("regretted", result.recall_handle)

        async def one_left() -> bool:
            return await waiting() == ["wanted"]

        await until(one_left)


async def test_of_many_the_next_ones(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    """If a level has more messages than are read, the list is incomplete.

    It ends where later messages of other levels could be missing.
    """
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("crowded", queues=1)
    count = 2 * delayed_messages.MAX_OF_LEVEL + 10
    for number in range(count):
        producer.send(Message("crowded", b"%d" % number, delay_level=15))
    producer.send(Message("crowded", b"last", delay_level=18))

    async def known() -> Any:
        page = await json_of(visitor, "due")
        return page if page["up_to_ms"] is not None else None

    page = await until(known)
    assert all(row["due_ms"] <= page["up_to_ms"] for row in page["rows"])
    mine = [row["row"]["start"] for row in page["rows"] if row["topic"] == "crowded"]
    assert delayed_messages.MAX_OF_LEVEL <= len(mine) < count
    assert "last" not in mine
    assert "up to:" in await html_of(visitor, "due")


async def test_popped_messages(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    """Recorded pops are shown until they are acknowledged."""
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("popped", queues=1)
        # Brokers record pops at once.
        await admin.update_broker_config(cluster.brokers, {"popCkStayBufferTime": "0"})
    assert (await json_of(visitor, "receipts"))["open"] == 0
    for number in range(3):
        producer.send(Message("popped", b"%d" % number))
    async with SimpleConsumer(cluster.name_server, "poppers") as consumer:
        consumer.subscribe("popped")
        held: list[Any] = []

        async def all_popped() -> bool:
            held.extend(await consumer.receive(16, invisible_time=600, timeout=1))
            return len(held) == 3

        await until(all_popped)

        async def all_noted() -> Any:
            page = await json_of(visitor, "receipts", search="poppers")
            return page if page["open"] == 3 else None

        # The page of the previous request is cached for a while.
        page = await until(all_noted)
        assert {(row["group"], row["topic"]) for row in page["table"]["rows"]} == {("poppers", "popped")}
        assert all(row["back_ms"] - row["popped_ms"] == 600_000 for row in page["table"]["rows"])
        assert "poppers" in await html_of(visitor, "receipts")
        await consumer.ack(held[0])

        async def one_less() -> bool:
            return (await json_of(visitor, "receipts"))["open"] == 2

        await until(one_less)
        for one in held[1:]:
            await consumer.ack(one)

        async def none_left() -> bool:
            return (await json_of(visitor, "receipts"))["open"] == 0

        await until(none_left)


def test_what_a_note_leaves_open() -> None:
    from gantrymq.console.queries.popped_messages import _unacked

    checkpoint = Checkpoint(10, 1000, 60_000, 3, 0, "t", "g", bit_map=0b001, diffs=[0, 2, 5])
    assert _unacked(checkpoint, set()) == [12, 15]
    assert _unacked(checkpoint, {12, 99}) == [15]
