"""Three controllers that share etcd.

One of them leads. If it dies or hangs, another one takes over, and the brokers continue.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from controller_support import Broker, elect_header
from etcd_support import Member, etcd, needs_etcd
from wait_until import until

from gantrymq.errors import GantryError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import GetMetaDataResponseHeader, GetReplicaInfoResponseHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.processes import ServerProcess

pytestmark = needs_etcd


class Group:
    """The processes, and brokers that send heartbeats to all controllers."""

    def __init__(self, members: list[Member], controllers: list[ServerProcess]) -> None:
        self.members = members
        self.controllers = controllers
        self.client = RemotingClient()

    async def leader(self, *, without: ServerProcess | None = None) -> ServerProcess | None:
        """Returns the leader, and checks that there are never two.

        `without` gets no request, because a stopped process does not answer.
        """
        leaders = []
        for controller in self.controllers:
            if controller is without:
                continue
            request = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
            try:
                # Timeout for a process that hangs, in milliseconds. A busy one answers within this time.
                answer = await self.client.invoke(controller.address, request, 2000)
            except GantryError:
                continue
            if answer.read_header(GetMetaDataResponseHeader).is_leader:
                leaders.append(controller)
        assert len(leaders) < 2
        return leaders[0] if leaders else None

    async def other_than(self, old: ServerProcess) -> ServerProcess:
        return await until(lambda: self.leader(without=old))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[list[Member], list[ServerProcess]]]:
    with ExitStack() as stack:
        members = stack.enter_context(etcd(tmp_path / "etcd", members=3))
        controllers = []
        for i in range(3):
            properties = {
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "controllerDLegerSelfId": f"n{i}",
                "etcdEndpoints": ";".join(member.url for member in members),
                "configStorePath": str(tmp_path / f"n{i}.properties"),
            }
            controllers.append(ServerProcess("controller", f"n{i}", tmp_path, properties, ()))
            stack.callback(controllers[-1].stop)
        for controller in controllers:
            controller.wait_until_ready(time.monotonic() + 30)
        yield members, controllers


@asynccontextmanager
async def broker(group: Group, leader: ServerProcess, broker_id: int = 0) -> AsyncIterator[list[Broker]]:
    """Yields one broker's connections to each controller, the leader first. Without an id, the broker is new."""
    others = [controller for controller in group.controllers if controller is not leader]
    faces = [Broker(controller) for controller in (leader, *others)]
    try:
        if not broker_id:
            await faces[0].start()
        for face in faces:
            face.broker_id = broker_id or faces[0].broker_id
            await face.heartbeat(timeout_ms=60_000)
        yield faces
    finally:
        for face in faces:
            await face.die()


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
async def test_a_leader_that_is_gone_is_followed_by_another(
    processes: tuple[list[Member], list[ServerProcess]], end: str
) -> None:
    group = Group(*processes)
    leader = await until(group.leader)
    assert leader is not None
    async with broker(group, leader) as first, broker(group, leader) as second:
        await first[0].elect()
        assert (await first[0].in_sync(1, 2)).code == ResponseCode.SUCCESS
        os.kill(leader.pid, signal.Signals[end])
        began = time.monotonic()
        next_leader = await group.other_than(leader)
        took = time.monotonic() - began
        # Its lease expires after at most 2 s.
        assert took < 4.5, took
        seen = next(face for face in second if face.controller == next_leader.address)
        info, in_sync = await seen.info()
        assert (info.master_broker_id, info.master_epoch, in_sync.sync_state_set) == (1, 1, [1, 2])
        elected = await seen.elect(designate=True)
        assert (elected.master_broker_id, elected.master_epoch) == (2, 2)
        if end == "SIGSTOP":
            os.kill(leader.pid, signal.SIGCONT)
            # It has not contacted etcd yet. By its own clock, its lease is over.
            answer = await first[0].ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(1, designate=True))
            assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            assert await group.leader() is next_leader
            assert (await seen.info())[0].master_broker_id == 2


async def test_without_most_of_etcd_nobody_is_elected(processes: tuple[list[Member], list[ServerProcess]]) -> None:
    group = Group(*processes)
    leader = await until(group.leader)
    assert leader is not None
    async with broker(group, leader) as first:
        await first[0].elect()
        group.members[0].kill()
        group.members[1].kill()
        answer = await first[0].ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(1, designate=True))
        assert answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST

        async def nobody_leads() -> bool:
            return await group.leader() is None

        await until(nobody_leads)
        answer = await first[0].ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(1))
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        group.members[0].start_again()
        again = await until(group.leader)
        assert again is not None
        face = next(face for face in first if face.controller == again.address)
        answer = await face.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, elect_header(1))
        assert answer.read_header(GetReplicaInfoResponseHeader).master_broker_id == 1
