"""Controller mode: lite topics that expire and begin anew, and the offsets of their groups on a new master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from administration import commit
from controlled_support import ControlledBrokers, elect
from lite_support import ADD, GROUP, TOPIC, LitePeer, bodies
from paused_slaves import pause_slave, resume_slave
from replicated_brokers import Replicas, copy_tables
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.protocol.bodies.lite import OffsetOption, OffsetOptionType
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from gantrymq.store.light.light_queues import LightQueues

FIRST = OffsetOption(OffsetOptionType.POLICY, 1)
ONE = light_queue_of(TOPIC, "one")


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ControlledBrokers]:
    replicas = ControlledBrokers(tmp_path, 2, min_lite_ttl=0, lite_ttl_check_interval=10)
    replicas.store_options["enable_lmq"] = True
    async with replicas:
        await replicas.all_in_sync()
        yield replicas


async def lite_peer(replicas: ControlledBrokers, number: int) -> LitePeer:
    return LitePeer((await replicas.peer(number)).connection)


def light_of(broker: Broker) -> LightQueues:
    assert broker.store.light is not None
    return broker.store.light


def offset(broker: Broker) -> int | None:
    return broker.offsets.query(GROUP, ONE, LIGHT_QUEUE_ID)


async def send(peer: LitePeer, *sent: bytes) -> None:
    for body in sent:
        response = await peer.send_to("one", body)
        assert response.code == ResponseCode.SUCCESS, response.remark


async def pop(peer: LitePeer, count: int) -> list[bytes]:
    """Pops and acknowledges messages. They become visible one by one, when the slave has them."""
    found: list[bytes] = []
    while len(found) < count:
        messages = await peer.pop(poll_ms=20_000)
        assert messages
        assert set(await peer.acknowledge(*messages)) == {ResponseCode.SUCCESS}
        found += bodies(messages)
    return found


async def subscribed_to_new_master(replicas: ControlledBrokers) -> LitePeer:
    await elect(replicas, 2)
    peer = await lite_peer(replicas, 2)

    async def is_subscribed() -> bool:
        """The request is refused until all parts of the broker are a master's."""
        return (await peer.change(ADD, "one")).code == ResponseCode.SUCCESS

    await until(is_subscribed)
    return peer


async def consume_and_expire(replicas: ControlledBrokers, wrong_clock: WrongClock) -> LitePeer:
    """The group consumes two messages, the slave copies its offset, and the lite topic expires."""
    peer = await lite_peer(replicas, 1)
    await peer.create(expiration=1)
    await peer.subscribe("one", option=FIRST)
    await send(peer, b"old", b"old")
    assert await pop(peer, 2) == [b"old", b"old"]
    await copy_tables(replicas.brokers[2])
    await until(lambda: offset(replicas.brokers[2]) == 2)
    wrong_clock.ahead_s = 61
    await until(lambda: not light_of(replicas.brokers[1]).queue_count)
    return peer


async def test_a_group_skips_no_message_of_a_new_lite_topic(
    replicas: ControlledBrokers, wrong_clock: WrongClock
) -> None:
    peer = await consume_and_expire(replicas, wrong_clock)
    replicas.brokers[2].jobs.find("copy the master's tables").cancel()
    await send(peer, b"0", b"1", b"2")
    peer = await subscribed_to_new_master(replicas)
    assert offset(replicas.brokers[2]) is None
    assert await pop(peer, 3) == [b"0", b"1", b"2"]


async def test_a_lite_topic_that_did_not_begin_anew_goes_on(
    replicas: ControlledBrokers, wrong_clock: WrongClock
) -> None:
    """The new master has the messages of the expired lite topic, so it also needs the offset."""
    await consume_and_expire(replicas, wrong_clock)
    await copy_tables(replicas.brokers[2])
    # No lite topic of the new master is old enough.
    wrong_clock.ahead_s = 0
    peer = await subscribed_to_new_master(replicas)
    assert offset(replicas.brokers[2]) == 2
    await replicas.all_in_sync()
    await send(peer, b"new")
    assert await pop(peer, 1) == [b"new"]


async def test_the_offset_in_a_new_lite_topic_is_copied(replicas: ControlledBrokers, wrong_clock: WrongClock) -> None:
    peer = await consume_and_expire(replicas, wrong_clock)
    await peer.subscribe("one", option=FIRST)
    await send(peer, b"0")
    assert await pop(peer, 1) == [b"0"]
    await copy_tables(replicas.brokers[2])
    await until(lambda: offset(replicas.brokers[2]) == 1)


@pytest.mark.parametrize("is_older", [True, False])
async def test_a_pending_table_and_a_new_lite_topic(tmp_path: Path, wrong_clock: WrongClock, is_older: bool) -> None:
    """The slave applies a table after the first message of a new lite topic. The table is older or newer than it."""
    replicas = Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER)
    replicas.store_options["enable_lmq"] = True
    replicas.options |= {"min_lite_ttl": 0, "lite_ttl_check_interval": 10}
    async with replicas:
        slave, light = replicas.slave, light_of(replicas.master)
        peer = LitePeer((await replicas.peer()).connection)
        await peer.create(expiration=1)
        await peer.subscribe("one", option=FIRST)
        await send(peer, b"old", b"old")
        assert await pop(peer, 2) == [b"old", b"old"]
        await replicas.caught_up()
        pause_slave(slave)
        if is_older:
            await copy_pending(replicas, peer)
        wrong_clock.ahead_s = 61
        await until(lambda: not light.queue_count)
        await peer.subscribe("one", option=FIRST)
        await send(peer, b"0", b"1", b"2")
        assert await pop(peer, 3) == [b"0", b"1", b"2"]
        if not is_older:
            await copy_pending(replicas, peer)
        resume_slave(slave)
        await until(lambda: slave.offsets.query("marker", TOPIC, 0) == 1)
        assert offset(slave) == (None if is_older else 3)


async def copy_pending(replicas: Replicas, peer: LitePeer) -> None:
    """Lets the slave copy a table for which its log is too short, and no later one."""
    await commit(peer, 1, group="marker", topic=TOPIC)
    assert (await peer.send_to("other", b"x")).code == ResponseCode.SUCCESS
    await copy_tables(replicas.slave)
    replicas.slave.jobs.find("copy the master's tables").cancel()
    assert replicas.slave.offsets.query("marker", TOPIC, 0) is None
