"""Slaves in controller mode deliver no messages above the confirm offset.

This holds whatever their former role was.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_support import Peer
from controlled_support import ControlledBrokers
from paused_slaves import pause_slave, resume_slave
from wait_until import until

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.replication.slave import HaSlave


async def shown(peer: Peer) -> list[bytes]:
    return [message.body for message in decode_messages((await peer.pull("orders")).body)]


async def test_a_slave_that_was_started_again(tmp_path: Path) -> None:
    """A restarted slave delivers no unconfirmed messages.

    Its log contains them, but a replica without them can still be elected.
    """
    async with ControlledBrokers(tmp_path, slave_read_enable=True) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"all have it")).code == ResponseCode.SUCCESS
        pause_slave(replicas.brokers[3])
        sending = asyncio.ensure_future(peer.send("orders", b"one lacks it"))
        await until(lambda: replicas.brokers[1].store.queue("orders", 0).max_offset == 2)
        end = replicas.brokers[1].store.max_physical_offset
        await until(lambda: replicas.brokers[2].store.max_physical_offset == end)
        await replicas.stop(2)
        await replicas.start(2)
        await until(lambda: replicas.brokers[2].replication.is_following)
        at_slave = await replicas.peer(2)
        await until(lambda: replicas.brokers[2].replication.confirm_offset() > 0)
        assert await shown(at_slave) == [b"all have it"]
        resume_slave(replicas.brokers[3])
        assert (await sending).code == ResponseCode.SUCCESS

        async def all_is_shown() -> bool:
            return await shown(at_slave) == [b"all have it", b"one lacks it"]

        await until(all_is_shown)


async def test_a_former_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former master truncates its last messages only after it has connected to the new master."""
    async with ControlledBrokers(tmp_path, 2, slave_read_enable=True) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"all have it")).code == ResponseCode.SUCCESS
        # A new master without this topic would make the former one delete it, and its pulls would fail.
        await until(lambda: replicas.brokers[2].topics.get("orders") is not None)
        pause_slave(replicas.brokers[2])
        sending = asyncio.ensure_future(peer.send("orders", b"one lacks it"))
        await until(lambda: replicas.brokers[1].store.queue("orders", 0).max_offset == 2)

        async def can_not(self: HaSlave) -> float:
            return 60.0

        monkeypatch.setattr(HaSlave, "_connect", can_not)
        header = ElectMasterRequestHeader(
            cluster_name="DefaultCluster", broker_name="broker-a", broker_id=2, designate_elect=True
        )
        request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        await replicas.remoting.call(replicas.controller.address, request)
        await until(lambda: replicas.masters() == [2])
        assert (await sending).code == ResponseCode.SERVICE_NOT_AVAILABLE

        for _ in range(100):
            # This also holds while it is becoming a slave and already has the new master's tables.
            assert await shown(peer) == [b"all have it"]
        await until(lambda: replicas.brokers[1].replication.following.address is not None)
        assert await shown(peer) == [b"all have it"]
