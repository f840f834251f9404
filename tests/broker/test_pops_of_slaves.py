"""Pops from an acting master, and from a broker that has just become a slave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from administration import create_group
from controlled_support import ControlledBrokers
from pop_support import Popped, PopPeer
from test_acting_master import WithAnother
from wait_until import until
from wrong_clock import set_clock

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.headers.pop import ChangeInvisibleTimeResponseHeader

RETRY = "%RETRY%poppers_orders"


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[WithAnother]:
    async with WithAnother(tmp_path, 1) as brokers:
        brokers.add_topic(RETRY)
        yield brokers


async def popper(brokers: WithAnother, broker_id: int = 0) -> PopPeer:
    return PopPeer(await brokers.remoting.connection(f"127.0.0.1:{brokers.brokers[broker_id].port}"))


async def without_master(brokers: WithAnother, *bodies: bytes) -> PopPeer:
    """Stores the messages, stops the master, and returns a pop client of the acting master."""
    peer = await popper(brokers)
    await create_group(peer, "poppers")
    for body in bodies:
        assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
    await brokers.copied()
    await brokers.stop(0)
    await stands_in(brokers)
    return await popper(brokers, 1)


async def stands_in(brokers: WithAnother) -> None:
    await until(lambda: brokers.slave.acting.is_acting and brokers.slave.pops.buffer.keeps_all)


def came_back(brokers: WithAnother) -> list[bytes]:
    """Returns the messages of the group's retry topic on other brokers."""
    return [message.body for message in brokers.messages(brokers.other, RETRY)]


def offset(brokers: WithAnother, broker_id: int = 1) -> int | None:
    return brokers.brokers[broker_id].offsets.query("poppers", "orders", 0)


async def test_what_is_not_acknowledged_comes_back_elsewhere(brokers: WithAnother) -> None:
    peer = await without_master(brokers, b"acked", b"left", b"next")
    first, left = await peer.messages("orders", count=2, invisible_ms=3_000)
    assert (first.body, left.body) == (b"acked", b"left")
    assert (await peer.ack(first)).code == ResponseCode.SUCCESS
    # The acknowledgement is in memory only: the next acting master starts with these messages.
    assert offset(brokers) == 0
    await until(lambda: came_back(brokers) == [b"left"])
    await until(lambda: offset(brokers) == 2)
    (following,) = await peer.messages("orders")
    assert following.body == b"next"
    assert brokers.slave.pops.buffer.in_flight_offsets == 1
    (message,) = brokers.messages(brokers.other, RETRY)
    assert message.reconsume_times == 1


async def test_a_message_whose_time_is_changed_comes_back_then(brokers: WithAnother) -> None:
    peer = await without_master(brokers, b"sooner", b"beside")
    one, beside = await peer.messages("orders", invisible_ms=60_000)
    assert (await peer.change(one, 3_000)).code == ResponseCode.SUCCESS
    assert (await peer.ack(beside)).code == ResponseCode.SUCCESS
    assert offset(brokers) == 0
    await until(lambda: came_back(brokers) == [b"sooner"])
    await until(lambda: offset(brokers) == 2)


async def test_a_time_is_changed_in_the_millisecond_of_the_pop(
    brokers: WithAnother, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await without_master(brokers, b"one", b"beside")
    one, beside = await peer.messages("orders", invisible_ms=60_000)
    message, handle = one
    with monkeypatch.context() as patch:
        set_clock(patch, lambda: handle.pop_time * 10**6, time.time)
        for n in (1, 2):
            changed = await peer.change(Popped(message, handle), 3_000)
            assert changed.code == ResponseCode.SUCCESS
            answer = changed.read_header(ChangeInvisibleTimeResponseHeader)
            assert answer.pop_time == one.handle.pop_time + n
            handle = handle._replace(
                start_offset=message.queue_offset, pop_time=answer.pop_time, invisible_time=answer.invisible_time
            )
    for acked in (Popped(message, handle), beside):
        assert (await peer.ack(acked)).code == ResponseCode.SUCCESS
    await until(lambda: offset(brokers) == 2)


async def test_a_master_that_is_back_hands_out_what_was_not_acknowledged(brokers: WithAnother) -> None:
    peer = await without_master(brokers, b"done", b"left")
    (done,) = await peer.messages("orders", count=1)
    assert (await peer.ack(done)).code == ResponseCode.SUCCESS
    (left,) = await peer.messages("orders", count=1)
    assert left.body == b"left"
    held = asyncio.ensure_future(peer.pop("orders", poll_ms=15_000))
    await until(lambda: len(brokers.slave.pops.waiting) == 1)
    await brokers.start(0)
    # A pop at the slave does not wait for messages that the master delivers.
    assert (await held).code == ResponseCode.POLLING_TIMEOUT
    assert not len(brokers.slave.pops.buffer)
    assert (await peer.ack(left)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    (again,) = await (await popper(brokers)).messages("orders")
    assert again.body == b"left"


async def test_what_the_master_handed_out_is_acknowledged_at_the_slave(brokers: WithAnother) -> None:
    peer = await popper(brokers)
    await create_group(peer, "poppers")
    for body in (b"acked", b"changed"):
        await peer.send("orders", body)
    acked, changed = [(await peer.messages("orders", count=1, invisible_ms=8_000))[0] for _ in range(2)]
    # The checkpoints must be in the log, and not in memory only.
    brokers.master.pops.buffer.expire(1 << 62)
    await brokers.copied()
    await brokers.stop(0)
    await stands_in(brokers)
    peer = await popper(brokers, 1)
    assert (await peer.ack(acked)).code == ResponseCode.SUCCESS
    refused = await peer.change(changed, 60_000)
    assert (refused.code, "it comes back at its time" in (refused.remark or "")) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        True,
    )
    await until(lambda: came_back(brokers) == [b"changed"])


async def test_who_waits_at_a_master_is_answered_when_another_is(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        peer = PopPeer(await replicas.remoting.connection(f"127.0.0.1:{replicas.brokers[1].port}"))
        await create_group(peer, "poppers")
        await peer.send("orders", b"first")
        (first,) = await peer.messages("orders")
        assert (await peer.ack(first)).code == ResponseCode.SUCCESS
        held = asyncio.ensure_future(peer.pop("orders", poll_ms=25_000))
        await until(lambda: len(replicas.brokers[1].pops.waiting) == 1)
        header = ElectMasterRequestHeader(broker_name="broker-a", broker_id=2, designate_elect=True)
        controller = PopPeer(await replicas.remoting.connection(replicas.controller.address))
        assert (await controller.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)).code == ResponseCode.SUCCESS
        # Otherwise the client would receive messages of the new master that it cannot acknowledge here.
        async with asyncio.timeout(15):
            assert (await held).code == ResponseCode.POLLING_TIMEOUT
