"""Two controllers share etcd, and the leader hangs while a master hands over.

The other controller continues from the same state.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from controllers_under_load import ControlledByProcesses, hand_over, under_load
from wait_until import until

from gantrymq.controller.etcd_store import LEASE_S
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import GetMetaDataResponseHeader
from gantrymq.testing.processes import ServerProcess

sys.path.append(str(Path(__file__).parent.parent / "controller"))

from etcd_support import etcd, needs_etcd

pytestmark = needs_etcd

#: The other controller leads after the lease in etcd expires and its next attempt succeeds.
HEARTBEAT_TIMEOUT_MS = 3_000


class TwoControllers(ControlledByProcesses):
    """Two controller processes that send no notification of a new master.

    Brokers poll them every 2 s.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory, controller_heart_beat_timeout_mills=HEARTBEAT_TIMEOUT_MS, sync_broker_metadata_period=2_000
        )
        self.processes: list[ServerProcess] = []
        self._running = ExitStack()

    async def start_controller(self) -> None:
        members = self._running.enter_context(etcd(self.directory / "etcd"))
        for name in ("n0", "n1"):
            properties = {
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "controllerDLegerSelfId": name,
                "etcdEndpoints": members[0].url,
                "configStorePath": str(self.directory / f"{name}.properties"),
                "notifyBrokerRoleChanged": "false",
            }
            process = ServerProcess("controller", name, self.directory, properties, ())
            self._running.callback(process.stop)
            await asyncio.to_thread(process.wait_until_ready, time.monotonic() + 30)
            self.processes.append(process)
        self.controller = await until(self.leader)  # type: ignore[assignment]

    async def leader(self) -> ServerProcess | None:
        for process in self.processes:
            if await self.leads(process):
                return process
        return None

    async def leads(self, process: ServerProcess) -> bool:
        request = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        answer = await self.remoting.invoke(process.address, request)
        return answer.read_header(GetMetaDataResponseHeader).is_leader

    def controller_addresses(self) -> list[str]:
        # The leader comes first: if it hangs, each request to it costs a timeout.
        return sorted((process.address for process in self.processes), key=lambda a: a != self.controller.address)

    async def _stop_controller(self) -> None:
        for process in self.processes:
            os.kill(process.pid, signal.SIGCONT)
        await asyncio.to_thread(self._running.close)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "master"), [("before", 1), ("decided", 2), ("told", 2)])
async def test_the_leading_one_hangs(tmp_path: Path, step: str, master: int) -> None:
    async with TwoControllers(tmp_path) as replicas, under_load(replicas) as acknowledged:
        await until(lambda: len(acknowledged) > 50)
        first = await replicas.leader()
        assert first is not None
        other = next(process for process in replicas.processes if process is not first)
        if step != "before":
            assert await hand_over(replicas, 2) == 0
            if step == "told":
                await until(lambda: replicas.masters() == [2])
        os.kill(first.pid, signal.SIGSTOP)
        if step == "before":
            # The command takes as long as the other controller needs to become leader.
            assert await hand_over(replicas, 2) != 0
        await until(lambda: replicas.leads(other), LEASE_S + 10)
        await until(lambda: replicas.masters() == [master])
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 50)
        # The first controller resumes with a request in its buffer, and still acts as leader.
        os.kill(first.pid, signal.SIGCONT)
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 200)
        assert replicas.masters() == [master]
        assert not await replicas.leads(first)
        assert await replicas.leads(other)
