"""Pops of a broker that becomes master while another broker may be master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from administration import create_group
from broker_support import config
from pop_support import PopPeer, popped
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.pop import NotificationRequestHeader
from gantrymq.remoting.client import RemotingClient


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[PopPeer]:
    remoting = RemotingClient()
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    await create_group(peer, "poppers")
    (first,) = await peer.messages("orders")
    assert (await peer.ack(first)).code == ResponseCode.SUCCESS
    yield peer
    await remoting.close()


def doubt(broker: Broker, is_doubted: bool) -> None:
    """Publishes that another broker may be master, or that the doubt has ended."""
    broker.context.events.mastership_doubted.publish(is_doubted)


async def rejected(peer: PopPeer) -> bool:
    """Returns whether the broker rejects pops and notifications without a wait."""
    notification = NotificationRequestHeader(
        consumer_group="poppers", topic="orders", queue_id=-1, poll_time=0, born_time=0
    )
    responses = [
        await peer.pop("orders", poll_ms=0),
        await peer.ask(RequestCode.NOTIFICATION, notification),
    ]
    codes = {response.code for response in responses}
    assert len({code == ResponseCode.SERVICE_NOT_AVAILABLE for code in codes}) == 1
    return codes == {ResponseCode.SERVICE_NOT_AVAILABLE}


async def waiting_pop_gets(broker: Broker, peer: PopPeer, body: bytes) -> None:
    """Asserts that a pop waits for the next message and receives it."""
    pop = asyncio.ensure_future(peer.pop("orders", poll_ms=15_000))
    await until(lambda: len(broker.pops.waiting) == 1)
    assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
    (message,) = popped(await pop)
    assert message.body == body


async def test_a_doubt_that_begins_while_the_broker_becomes_master_lasts(broker: Broker, peer: PopPeer) -> None:
    role_changes = broker.features.role_changes
    await role_changes.become_slave()
    await role_changes.become_master(lambda: doubt(broker, True))
    assert await rejected(peer)
    # A pop that was received before the doubt must not start to wait either.
    assert broker.pops.waiting.is_stopped
    assert broker.pops.waiting_notifications.is_stopped
    doubt(broker, False)
    assert not await rejected(peer)
    await waiting_pop_gets(broker, peer, b"second")


async def test_a_doubt_lasts_through_a_time_as_slave(broker: Broker, peer: PopPeer) -> None:
    role_changes = broker.features.role_changes
    doubt(broker, True)
    assert await rejected(peer)
    await role_changes.become_slave()
    await role_changes.become_master()
    assert await rejected(peer)
    assert broker.pops.waiting.is_stopped
    doubt(broker, False)
    await waiting_pop_gets(broker, peer, b"second")


async def test_a_doubt_that_ends_while_the_broker_is_slave_is_over(broker: Broker, peer: PopPeer) -> None:
    role_changes = broker.features.role_changes
    doubt(broker, True)
    await role_changes.become_slave()
    doubt(broker, False)
    # The broker rejects pops as a slave.
    assert await rejected(peer)
    await role_changes.become_master()
    assert not await rejected(peer)
    await waiting_pop_gets(broker, peer, b"second")


async def test_a_slave_has_no_lag_of_timers_and_pops(broker: Broker, peer: PopPeer) -> None:
    """Only a master puts timer messages onto the wheel and reads the revive log."""
    later = await peer.send("orders", b"later", properties={"TIMER_DELAY_SEC": "3600"})
    assert later.code == ResponseCode.SUCCESS
    timer, role_changes = broker.features.timer, broker.features.role_changes
    await until(lambda: timer.behind().waiting == 1)
    for _ in range(2):
        await role_changes.become_slave()
        assert timer.behind() == (0, 0, 0)
        assert timer.enqueue_latency_ms() == 0
        assert broker.pops.revive_lags() == broker.pops.revive_latencies_ms() == []
        await role_changes.become_master()
        await until(lambda: timer.behind().waiting == 1)
        assert len(broker.pops.revive_lags()) == 8
