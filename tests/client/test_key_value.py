"""KeyValue: a compaction topic as a table of keys and values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from wait_until import until

from gantrymq import (
    AdminClient,
    ClientClosed,
    ClientError,
    IllegalMessage,
    KeyValue,
    KeyValueEntry,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    Tombstone,
)
from gantrymq.client import key_value


@pytest.fixture
async def topic(name_server: str, unique: str) -> str:
    async with AdminClient(name_server) as admin:
        assert await admin.ensure_topic(unique, queues=4, attributes={"cleanup.policy": "COMPACTION"})
    return unique


async def test_put_get_and_delete(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as table:
        assert await table.get("region") is None
        await table.put("region", b"eu")
        assert await table.get("region") == b"eu"
        await table.put("region", b"us")
        await table.put("zone", b"1")
        assert await table.get("region") == b"us"
        assert {key: entry.value for key, entry in (await table.entries()).items()} == {"region": b"us", "zone": b"1"}
        await table.delete("region")
        assert await table.get("region") is None
        await table.delete("region")
    with pytest.raises(ClientClosed):
        await table.get("zone")
    async with KeyValue(name_server, topic) as again:
        assert set(await again.entries()) == {"zone"}


async def test_another_client_sees_the_changes(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as writer, KeyValue(name_server, topic) as reader:
        changes = reader.watch()
        await writer.put("a", b"1")
        assert (await next_of(changes))[:2] == ("a", b"1")
        await writer.put("a", b"2")
        assert (await next_of(changes))[:2] == ("a", b"2")
        await writer.delete("a")
        assert (await next_of(changes))[:2] == ("a", None)
        assert await reader.get("a") is None
        await writer.put("b", b"3")
        only_b = reader.watch("b")
        assert (await next_of(only_b))[:2] == ("b", b"3")
        await writer.put("a", b"4")
        await writer.put("b", b"5")
        assert (await next_of(only_b))[:2] == ("b", b"5")


async def test_a_watch_begins_with_the_current_entries_and_ends_with_the_client(name_server: str, topic: str) -> None:
    table = KeyValue(name_server, topic)
    async with table:
        await table.put("a", b"1")
        assert await table.get("a") == b"1"
        entries: list[KeyValueEntry] = []

        async def watch() -> None:
            async for entry in table.watch():
                entries.append(entry)

        watching = asyncio.create_task(watch())
        await table.put("b", b"2")
        assert await table.get("b") == b"2"
    await asyncio.wait_for(watching, 20)
    assert [(entry.key, entry.value) for entry in entries] == [("a", b"1"), ("b", b"2")]


async def test_many_keys(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as table:
        await asyncio.gather(*(table.put(f"key-{i}", b"%d" % i, timeout=20) for i in range(200)))
        entries = await table.entries(timeout=20)
    assert {key: entry.value for key, entry in entries.items()} == {f"key-{i}": b"%d" % i for i in range(200)}
    assert len({entry.queue for entry in entries.values()}) == 4


async def test_a_producer_can_delete_a_key(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as table, Producer(name_server, "producers") as producer:
        result = await table.put("a", b"1")
        await producer.send(Tombstone(topic, "a"), queue=result.queue)
        changes = table.watch("a")
        while (entry := await next_of(changes)).value is not None:
            pass
        assert entry.queue == result.queue
        with pytest.raises(IllegalMessage):
            await producer.send(Message(topic, b"", keys="a"))


async def test_a_tombstone_goes_to_the_queue_of_its_key(name_server: str, topic: str) -> None:
    keys = [f"key-{i}" for i in range(16)]
    async with Producer(name_server, "producers") as producer, KeyValue(name_server, topic) as table:
        for key in keys:
            put = await producer.send(Message(topic, b"1", keys=key, sharding_key=key))
            own = await table.put(key, b"2")
            deleted = await producer.send(Tombstone(topic, key))
            assert put.queue == own.queue == deleted.queue


async def test_invalid_arguments(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as table:
        with pytest.raises(IllegalMessage, match="empty"):
            await table.put("a", b"")
        with pytest.raises(IllegalMessage, match="blank"):
            await table.put(" ", b"1")
        with pytest.raises(IllegalMessage, match="blank"):
            await table.delete("")
    with pytest.raises(ClientError):
        KeyValue(name_server, topic, max_bytes=0)


async def test_too_much_for_the_memory(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic, max_bytes=1000) as table:
        await table.put("a", bytes(600))
        await table.put("a", bytes(601))
        assert len(await table.get("a") or b"") == 601
        await table.put("b", bytes(200))
        with pytest.raises(ClientError, match="max_bytes=1000: increase"):
            await table.get("b")


@pytest.mark.parametrize("key", ["k", "\N{PILE OF POO}" * 200])
async def test_the_memory_has_keys_and_entries(name_server: str, topic: str, key: str) -> None:
    """Three entries with tiny values or two with 800 bytes of key."""
    async with KeyValue(name_server, topic, max_bytes=800) as table:
        for n in range(3):
            await table.put(f"{key}{n}", b"1")
        with pytest.raises(ClientError, match="max_bytes=800"):
            await table.entries(timeout=20)


async def test_a_slow_watch(name_server: str, topic: str) -> None:
    """The table stays small. Only the watch has many changes, because it gets the deletions."""
    async with KeyValue(name_server, topic, max_bytes=1500) as table:
        slow, fast, of_one_key = table.watch(), table.watch(), table.watch("key-0")
        for n in range(10):
            await table.put(f"key-{n}", b"1")
            for watch in [slow, fast, of_one_key] if n == 0 else [fast]:
                assert (await next_of(watch))[:2] == (f"key-{n}", b"1")
            await table.delete(f"key-{n}")
            assert (await next_of(fast))[:2] == (f"key-{n}", None)
        with pytest.raises(ClientError, match="too slow"):
            await next_of(slow)
        assert (await next_of(of_one_key))[:2] == ("key-0", None)
        assert await table.entries(timeout=20) == {}


async def test_after_a_failure_no_old_value_is_returned(name_server: str, topic: str) -> None:
    async with KeyValue(name_server, topic) as writer, KeyValue(name_server, topic, max_bytes=1000) as reader:
        changes = reader.watch()
        await writer.put("a", b"1")
        assert (await next_of(changes))[:2] == ("a", b"1")
        await writer.put("b", bytes(1001))
        with pytest.raises(ClientError, match="max_bytes=1000"):
            await next_of(changes)
        with pytest.raises(ClientError, match="max_bytes=1000"):
            await reader.get("a")
        with pytest.raises(ClientError, match="max_bytes=1000"):
            await reader.entries()


@pytest.mark.parametrize("puts", [1, 3, 6])
async def test_a_topic_that_is_created_again(name_server: str, unique: str, puts: int) -> None:
    """The end of the new queue is before, at or after the position in the old one."""
    async with AdminClient(name_server) as admin:
        assert await admin.ensure_topic(unique, queues=1, attributes={"cleanup.policy": "COMPACTION"})
        async with KeyValue(name_server, unique) as table:
            for key in ("a", "b", "c"):
                await table.put(key, b"old")
            changes = table.watch()
            assert [(await next_of(changes))[:2] for _ in range(3)] == [("a", b"old"), ("b", b"old"), ("c", b"old")]
            await admin.delete_topic(unique, "DefaultCluster")
            assert await admin.ensure_topic(unique, queues=1, attributes={"cleanup.policy": "COMPACTION"})
            async with Producer(name_server, "producers") as producer:
                for n in range(puts):
                    await producer.send(Message(unique, b"%d" % n, keys="a"))
            removed = set[str]()
            while (entry := await next_of(changes))[:2] != ("a", b"%d" % (puts - 1)):
                if entry.value is None:
                    removed.add(entry.key)
            assert removed >= {"b", "c"}
            assert await table.get("b", timeout=20) is None
            assert {key: entry.value for key, entry in (await table.entries()).items()} == {"a": b"%d" % (puts - 1)}
            await table.put("b", b"new")
            assert await table.get("b", timeout=20) == b"new"


class OneByOneConsumer(LitePullConsumer):
    """Reads one queue after the other, in the order of `order`."""

    order: Sequence[MessageQueue] = ()

    async def poll(self, *, max_messages: int = 1000, timeout: float | timedelta = 1.0) -> list[MessageExt]:
        for queue in self.order:
            if self.position(queue) < await self.end_offset(queue):
                self.pause(self.assignment - {queue})
                self.resume([queue])
                break
        return await super().poll(max_messages=max_messages, timeout=0.1)


@pytest.mark.parametrize("first", [0, 1])
async def test_the_last_message_of_two_queues_counts(
    name_server: str, unique: str, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Two queues have the same keys after a change of the number of queues. They are read in both orders."""
    async with AdminClient(name_server) as admin:
        assert await admin.ensure_topic(unique, queues=2, attributes={"cleanup.policy": "COMPACTION"})
    async with Producer(name_server, "producers") as producer:
        one, two = await producer.queues(unique)
        for queue, message in [
            (one, Message(unique, b"old", keys="deleted")),
            (one, Message(unique, b"old", keys="changed")),
            (one, Message(unique, b"old", keys="restored")),
            (two, Tombstone(unique, "restored")),
        ]:
            await producer.send(message, queue=queue)
        before_ms = time.time_ns() // 1_000_000
        # The timestamps of messages decide, and have milliseconds.
        await until(lambda: time.time_ns() // 1_000_000 > before_ms)
        await producer.send(Tombstone(unique, "deleted"), queue=two)
        await producer.send(Message(unique, b"new", keys="changed"), queue=two)
        await producer.send(Message(unique, b"new", keys="restored"), queue=one)
    monkeypatch.setattr(OneByOneConsumer, "order", [two, one] if first else [one, two])
    monkeypatch.setattr(key_value, "LitePullConsumer", OneByOneConsumer)
    async with KeyValue(name_server, unique) as table:
        entries = await table.entries()
        assert {key: entry.value for key, entry in entries.items()} == {"changed": b"new", "restored": b"new"}
        await table.put("deleted", b"again")
        assert await table.get("deleted", timeout=20) == b"again"


class MovingConsumer(LitePullConsumer):
    """Has no queues after every second poll, as while it moves them to another offset."""

    _moving: dict[MessageQueue, int] | None = None

    async def poll(self, *, max_messages: int = 1000, timeout: float | timedelta = 1.0) -> list[MessageExt]:
        if self._moving:
            await self.assign(self._moving)
            for queue, position in self._moving.items():
                await self.seek(queue, position)
            self._moving = None
            return await super().poll(max_messages=max_messages, timeout=0.1)
        self._moving = {queue: self.position(queue) for queue in self.assignment}
        await self.assign([])
        return []


async def test_a_queue_that_is_moved_does_not_end_the_reading(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_value, "LitePullConsumer", MovingConsumer)
    async with KeyValue(name_server, topic) as table:
        await table.put("a", b"1")
        assert await table.get("a", timeout=20) == b"1"


async def next_of(entries: AsyncIterator[KeyValueEntry]) -> KeyValueEntry:
    return await asyncio.wait_for(anext(entries), 20)
