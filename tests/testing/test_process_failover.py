"""Tests three brokers of one name and a controller as processes: the master is killed or suspended under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo
from gantrymq.protocol.message import Message
from gantrymq.testing.processes import HOST, ServerProcess

NAME, TOPIC = "broker-a", "orders"


class Servers:
    """Runs a NameServer, a controller with its state in a file, and three brokers with names."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self.brokers: dict[str, ServerProcess] = {}
        files = {"kvConfigPath": str(directory / "kv.json"), "configStorePath": str(directory / "n.properties")}
        self.name_server = self._start("namesrv", "namesrv", **files).address
        self.controller = self._start(
            "controller", "controller", controllerStorePath=str(directory / "controller")
        ).address

    def _start(self, command: str, name: str, **properties: str) -> ServerProcess:
        server = ServerProcess(command, name, self.directory, {"listenPort": "0", "bindAddress": HOST} | properties, ())
        self._stack.callback(server.stop)
        server.wait_until_ready(time.monotonic() + 60)
        return server

    def start(self, name: str) -> None:
        self.brokers[name] = self._start(
            "broker",
            name,
            brokerIP1=HOST,
            brokerName=NAME,
            namesrvAddr=self.name_server,
            storePathRootDir=str(self.directory / name),
            mappedFileSizeCommitLog=str(16 * 1024 * 1024),
            enableControllerMode="true",
            controllerAddr=self.controller,
            allAckInSyncStateSet="true",
            minInSyncReplicas="2",
            # A suspended broker counts as dead after two seconds.
            controllerHeartBeatTimeoutMills="2000",
            brokerHeartbeatInterval="200",
            checkSyncStateSetPeriod="200",
            haSendHeartbeatInterval="200",
        )


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        servers = await asyncio.to_thread(Servers, tmp_path, stack)
        for name in ("a", "b", "c"):
            await asyncio.to_thread(servers.start, name)
        yield servers


async def state(servers: Servers, admin: AdminClient) -> ReplicasInfo | None:
    return (await admin.sync_state_sets(servers.controller, [NAME])).get(NAME)


async def master(servers: Servers, admin: AdminClient, *, other_than: str = "") -> str:
    """Returns the process name of the controller's master."""

    async def found() -> str | None:
        info = await state(servers, admin)
        by_address = {broker.address: name for name, broker in servers.brokers.items() if name != other_than}
        return None if info is None else by_address.get(info.master_address or "")

    return await until(found, 30)


async def all_in_sync(servers: Servers, admin: AdminClient) -> None:
    async def same() -> bool:
        info = await state(servers, admin)
        addresses = {broker.address for broker in servers.brokers.values()}
        return info is not None and {replica.broker_address for replica in info.in_sync_replicas} == addresses

    await until(same, 60)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stands_still"])
async def test_a_master_that_is_gone(servers: Servers, how: signal.Signals) -> None:
    async with AdminClient(servers.name_server) as admin, Producer(servers.name_server, "producers") as producer:
        await all_in_sync(servers, admin)
        await until(lambda: ensure(admin))
        acknowledged: list[bytes] = []
        is_over = False

        async def produce(name: int) -> None:
            number = 0
            while not is_over:
                body = b"%d-%d" % (name, number)
                try:
                    sent = await producer.send(Message(TOPIC, body))
                except GantryError:
                    await asyncio.sleep(0.01)
                    continue
                if sent.status is SendStatus.SEND_OK:
                    acknowledged.append(body)
                    number += 1

        producing = [asyncio.ensure_future(produce(name)) for name in range(4)]
        await until(lambda: len(acknowledged) > 200)
        first = await master(servers, admin)
        os.kill(servers.brokers[first].pid, how)
        await master(servers, admin, other_than=first)
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 200, 60)
        if how is signal.SIGSTOP:
            os.kill(servers.brokers[first].pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(servers.start, first)
        await all_in_sync(servers, admin)
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 100, 60)
        is_over = True
        await asyncio.gather(*producing)
        await all_in_sync(servers, admin)
    logs = []
    for name, broker in servers.brokers.items():
        await asyncio.to_thread(broker.stop)
        files = sorted((servers.directory / name / "commitlog").iterdir())
        logs.append(b"".join(file.read_bytes() for file in files))
    end = max(len(log.rstrip(b"\0")) for log in logs)
    assert len({log[:end] for log in logs}) == 1
    for body in acknowledged:
        assert body in logs[0]


async def ensure(admin: AdminClient) -> bool:
    try:
        await admin.ensure_topic(TOPIC, queues=4)
    except GantryError:
        return False
    return True
