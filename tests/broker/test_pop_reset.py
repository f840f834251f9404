"""A pop group whose offset is reset or whose topic is deleted.

The broker discards the messages in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_support import config
from pop_support import PopPeer, popped
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.remoting.client import RemotingClient

TOPIC, GROUP = "orders", "poppers"
RETRY = pop_retry_topic(TOPIC, GROUP)
#: With such a short invisible duration, a checkpoint goes to the revive log at once. In milliseconds.
SOON_MS = 1000
#: Longest time until that checkpoint is processed, in seconds.
BACK_S = 15.0


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    broker.topics.put(TopicConfig(TOPIC, 2, 2))
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


async def send(peer: PopPeer, *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        assert (await peer.send(TOPIC, body, queue_id=queue_id)).code == ResponseCode.SUCCESS


async def reset(peer: PopPeer, **changed: object) -> RemotingCommand:
    header = ResetOffsetRequestHeader(topic=TOPIC, group=GROUP, timestamp=0, offset=-1, is_force=True)
    for name, value in changed.items():
        setattr(header, name, value)
    response = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return response


async def delete(peer: PopPeer, broker: Broker) -> None:
    response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": TOPIC})
    assert response.code == ResponseCode.SUCCESS
    broker.topics.put(TopicConfig(TOPIC, 2, 2))


async def pop(peer: PopPeer, *, order: bool | None = None, **options: object) -> list[bytes]:
    return [one.body for one in await peer.messages(TOPIC, queue_id=0, order=order, **options)]


def end_of(broker: Broker, topic: str) -> int:
    queue = broker.store.find_queue(topic, 0)
    return 0 if queue is None else queue.max_offset


@pytest.mark.parametrize("order", [None, True])
async def test_a_reset_to_the_committed_offset_has_all_come_again(
    peer: PopPeer, broker: Broker, order: bool | None
) -> None:
    bodies = [b"%d" % n for n in range(10)]
    await send(peer, *bodies)
    first = await peer.messages(TOPIC, queue_id=0, order=order)
    assert len(first) == 10
    for one in first[1:]:
        await peer.ack(one)
    assert await pop(peer, order=order) == []
    assert broker.offsets.query(GROUP, TOPIC, 0) == 0
    await reset(peer)
    again = await peer.messages(TOPIC, queue_id=0, order=order)
    assert [one.body for one in again] == bodies
    # Late acknowledgements for the pop before the reset.
    for one in first:
        await peer.ack(one)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 0
    for one in again:
        await peer.ack(one)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 10


@pytest.mark.parametrize("order", [None, True])
async def test_acknowledgements_between_a_reset_and_the_next_pop(
    peer: PopPeer, broker: Broker, order: bool | None
) -> None:
    await send(peer, b"0", b"1")
    first = await peer.messages(TOPIC, queue_id=0, order=order)
    await reset(peer)
    for one in reversed(first):
        await peer.ack(one)
    assert await pop(peer, order=order) == [b"0", b"1"]


@pytest.mark.parametrize("order", [None, True])
async def test_a_reset_wakes_who_waits(peer: PopPeer, broker: Broker, order: bool | None) -> None:
    await send(peer, b"0")
    assert await pop(peer, order=order) == [b"0"]
    other_client = RemotingClient()
    try:
        other = PopPeer(await other_client.connection(peer.connection.address))
        waiting = asyncio.create_task(pop(other, order=order, poll_ms=15_000))
        await until(lambda: len(broker.pops.waiting) == 1)
        await reset(peer)
        async with asyncio.timeout(10):
            assert await waiting == [b"0"]
    finally:
        await other_client.close()


async def test_one_queue_is_reset_to_an_offset(peer: PopPeer, broker: Broker) -> None:
    for queue_id in (0, 1):
        await send(peer, b"0", b"1", b"2", queue_id=queue_id)
    assert len(await peer.messages(TOPIC)) == 6
    await reset(peer, queue_id=1, offset=1)
    assert [(one.message.queue_id, one.body) for one in await peer.messages(TOPIC)] == [(1, b"1"), (1, b"2")]


async def test_a_reset_to_the_end_leaves_nothing_in_flight(peer: PopPeer, broker: Broker) -> None:
    await send(peer, b"0", b"1")
    assert await pop(peer) == [b"0", b"1"]
    await reset(peer, timestamp=-1)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    await send(peer, b"2")
    assert await pop(peer) == [b"2"]


async def test_a_clone_of_offsets_is_a_reset(peer: PopPeer, broker: Broker) -> None:
    await send(peer, b"0", b"1")
    assert await pop(peer) == [b"0", b"1"]
    broker.offsets.commit("source", TOPIC, 0, 0)
    header = CloneGroupOffsetRequestHeader(src_group="source", dest_group=GROUP, topic=TOPIC, offline=True)
    assert (await peer.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code == ResponseCode.SUCCESS
    assert await pop(peer) == [b"0", b"1"]


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[tuple[Broker, PopPeer]]:
    broker, client = Broker(config(directory)), RemotingClient()
    await broker.start()
    try:
        yield broker, PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
    finally:
        await client.close()
        await broker.stop()


@pytest.mark.parametrize("restarts", [False, True])
async def test_checkpoints_in_the_log_before_a_reset_bring_nothing_back(tmp_path: Path, restarts: bool) -> None:
    async with started(tmp_path / "store") as (broker, peer):
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        await send(peer, b"old")
        assert await pop(peer, invisible_ms=SOON_MS) == [b"old"]
        await reset(peer, timestamp=-1)
        if not restarts:
            await brings_back_only_new(broker, peer)
    if restarts:
        async with started(tmp_path / "store") as (broker, peer):
            await brings_back_only_new(broker, peer)


async def brings_back_only_new(broker: Broker, peer: PopPeer) -> None:
    await send(peer, b"new")
    assert await pop(peer, invisible_ms=SOON_MS) == [b"new"]
    await until(lambda: end_of(broker, RETRY), BACK_S)
    assert [one.body for one in popped(await peer.pop(TOPIC))] == [b"new"]
    assert end_of(broker, RETRY) == 1


@pytest.mark.parametrize("order", [None, True])
async def test_pops_of_a_deleted_topic_are_discarded(peer: PopPeer, broker: Broker, order: bool | None) -> None:
    await send(peer, b"old 0", b"old 1")
    old = await peer.messages(TOPIC, queue_id=0, order=order)
    assert len(old) == 2
    await delete(peer, broker)
    await send(peer, b"new 0", b"new 1")
    for one in old:
        await peer.ack(one)
    new = await peer.messages(TOPIC, queue_id=0, order=order)
    assert [one.body for one in new] == [b"new 0", b"new 1"]
    for one in old:
        await peer.ack(one)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 0
    for one in new:
        await peer.ack(one)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2


async def test_checkpoints_of_a_deleted_topic_bring_nothing_back(peer: PopPeer, broker: Broker) -> None:
    """Checkpoints of the deleted topic cause no redelivery in the new topic.

    At the same offsets, the new topic has other messages, which are acknowledged.
    """
    await send(peer, b"old")
    assert await pop(peer, invisible_ms=SOON_MS) == [b"old"]
    await delete(peer, broker)
    await send(peer, b"new 0", b"new 1")
    (first,) = await peer.messages(TOPIC, queue_id=0, count=1)
    await peer.ack(first)
    assert await pop(peer, count=1, invisible_ms=SOON_MS) == [b"new 1"]
    await until(lambda: end_of(broker, RETRY), BACK_S)
    assert [one.body for one in popped(await peer.pop(TOPIC))] == [b"new 1"]
    assert end_of(broker, RETRY) == 1


async def test_who_waits_for_a_deleted_topic_is_answered(peer: PopPeer, broker: Broker) -> None:
    await send(peer, b"old")
    assert await pop(peer) == [b"old"]
    other_client = RemotingClient()
    try:
        other = PopPeer(await other_client.connection(peer.connection.address))
        waiting = asyncio.create_task(other.pop(TOPIC, poll_ms=15_000))
        await until(lambda: len(broker.pops.waiting) == 1)
        await delete(peer, broker)
        async with asyncio.timeout(10):
            assert (await waiting).code == ResponseCode.POLLING_TIMEOUT
    finally:
        await other_client.close()
    assert broker.offsets.query(GROUP, TOPIC, 0) is None
