"""A slave leaves its master for one with a newer epoch.

The former master accepts no messages until a controller confirms its role.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from controlled_support import ControlledBrokers, Link, elect
from paused_slaves import pause_slave
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.controller.lease import Fence
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.private_fields import TIMEOUT_FIELD
from gantrymq.replication.autoswitch_frames import Hello, encode_hello, encode_leaving


def test_it_is_open_until_a_slave_leaves() -> None:
    fence = Fence()
    assert not fence.is_closed(1e9)
    fence.is_master(1.0, 2.0)
    fence.newer_epoch(7, 10.0)
    assert (fence.epoch, fence.is_closed(10.0), fence.closes_at) == (7, True, 10.0)


def test_only_who_was_asked_since_opens_it() -> None:
    fence = Fence()
    fence.newer_epoch(7, 10.0)
    fence.is_master(9.9, 10.5)
    assert fence.is_closed(10.5)
    fence.is_master(10.0, 10.6)
    assert not fence.is_closed(1e9)


def test_one_that_was_disproved_gives_the_master_some_time() -> None:
    fence = Fence()
    fence.newer_epoch(7, 10.0)
    fence.is_master(10.1, 10.2)
    fence.newer_epoch(8, 10.3)
    fence.newer_epoch(9, 10.4)
    assert not fence.is_closed(11.1)
    # The controller was queried before the fence closed, so its response does not open it.
    fence.is_master(10.9, 11.1)
    assert fence.is_closed(11.21)
    assert fence.epoch == 9


def test_one_that_leaves_while_a_controller_is_asked_counts_afterwards() -> None:
    fence = Fence()
    fence.newer_epoch(7, 10.0)
    fence.newer_epoch(7, 10.3)
    fence.is_master(10.1, 10.4)
    assert not fence.is_closed(10.5)
    assert fence.is_closed(11.4)
    fence.is_master(11.5, 11.6)
    assert not fence.is_closed(1e9)


def leaves(broker: Broker) -> bool:
    return "says a slave" in (broker.appender.refusal or "")


async def test_a_master_that_is_cut_off_learns_of_the_next_from_its_slaves(tmp_path: Path) -> None:
    # The lease is far longer than this test.
    async with ControlledBrokers(tmp_path, controller_heart_beat_timeout_mills=60_000) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
        pause_slave(replicas.brokers[3])
        link = Link(replicas.brokers[1])
        waiting = asyncio.ensure_future(peer.send("orders", b"waits", fields={TIMEOUT_FIELD: "60000"}))
        await until(lambda: replicas.brokers[1].store.queue("orders", 0).max_offset == 2)
        began = time.monotonic()
        await elect(replicas, 2)
        # `masters` returns the brokers that accept messages.
        await until(lambda: replicas.masters() == [2])
        answers = [await waiting, await peer.send("orders", b"refused")]
        assert time.monotonic() - began < 2
        assert leaves(replicas.brokers[1])
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        for answer in answers:
            assert "another broker" in str(answer.remark)
        assert replicas.brokers[1].store.queue("orders", 0).max_offset == 2
        link.mend()
        await replicas.all_in_sync()
        assert await replicas.master() == 2
        assert (await (await replicas.peer(2)).send("orders", b"second")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_forged_word_deposes_nobody(tmp_path: Path, is_cut: bool) -> None:
    """A forged notice of a newer epoch does not depose the master.

    Any client can connect to the HA port.
    """
    async with ControlledBrokers(tmp_path, 2, controller_heart_beat_timeout_mills=60_000) as replicas:
        await replicas.all_in_sync()
        peer, master = await replicas.peer(1), replicas.brokers[1]
        assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
        link = Link(master) if is_cut else None
        host, _, port = master.replication.ha_address.rpartition(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode_hello(Hello(9)) + encode_leaving(1 << 40))
            # The connection ends after the epochs of the master.
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
        if link is not None:
            assert leaves(master)
            assert (await peer.send("orders", b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            link.mend()
        await until(lambda: replicas.masters() == [1])
        # Notices that arrived while the fence was closed can close it again, until the controller confirms once more.
        await asyncio.sleep(1.5)
        await until(lambda: replicas.masters() == [1])
        assert (await peer.send("orders", b"second")).code == ResponseCode.SUCCESS
        # A notice with an older epoch is ignored.
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_hello(Hello(9)) + encode_leaving(1))
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert not leaves(master)
