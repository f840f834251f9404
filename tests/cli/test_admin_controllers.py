"""Tests of `gantry admin` with a controller: leader, sync-state set, master election, removal of brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from server_handlers import handlers_of

from gantrymq.cli.main import run
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.protocol.bodies.controller import EpochEntry, EpochEntryCache, SyncStateSet
from gantrymq.protocol.bodies.route import BrokerData, ClusterInfo
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
)
from gantrymq.protocol.headers.header import Header
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

CLUSTER, NAME = "DefaultCluster", "broker-a"
SET = ("-bn", NAME, "-c", CLUSTER)

Admin = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    """A controller with three brokers of one name: 1 is master, 2 is in sync, 3 is not in sync and not alive."""
    config = ControllerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        controller_store_path=tmp_path,
        config_store_path=tmp_path / "controller.properties",
    )
    controller = Controller(config)
    await controller.start()
    client = RemotingClient()

    async def ask(code: int, header: Header, body: bytes = b"") -> None:
        await client.call(controller.address, RemotingCommand.request(code, header, body))

    heartbeats: list[ControllerHeartbeatRequestHeader] = []
    for broker_id in (1, 2, 3):
        at = f"127.0.0.1:{broker_id}"
        await ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerIdRequestHeader(
                cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=broker_id, register_check_code=f"{at};1"
            ),
        )
        if broker_id < 3:
            heartbeat = ControllerHeartbeatRequestHeader(
                cluster_name=CLUSTER,
                broker_addr=at,
                broker_name=NAME,
                broker_id=broker_id,
                heartbeat_timeout_mills=100_000,
            )
            heartbeats.append(heartbeat)
            await ask(RequestCode.BROKER_HEARTBEAT, heartbeat)
    elect = ElectMasterRequestHeader(cluster_name=CLUSTER, broker_name=NAME, broker_id=1)
    await ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
    alter = AlterSyncStateSetRequestHeader(broker_name=NAME, master_broker_id=1, master_epoch=1)
    await ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, alter, encode_json(SyncStateSet([1, 2], 1)))

    async def speak() -> None:
        """Sends the heartbeats of live brokers. An election skips brokers that sent no heartbeat after it began."""
        while True:
            for heartbeat in heartbeats:
                await ask(RequestCode.BROKER_HEARTBEAT, heartbeat)
            await asyncio.sleep(0.1)

    speaking = asyncio.create_task(speak())
    yield controller
    speaking.cancel()
    await asyncio.wait([speaking])
    await client.close()
    await controller.stop()


@pytest.fixture
def admin(controller: Controller, capsys: pytest.CaptureFixture[str]) -> Admin:
    """Runs a command with -a, and returns its JSON document or its error output."""

    async def call(command: str, *arguments: str) -> Any:
        capsys.readouterr()
        code = await asyncio.to_thread(run, ["admin", command, "-a", controller.address, *arguments, "--json"])
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return call


async def test_who_is_in_sync(admin: Admin, controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    document = await admin("getSyncStateSet", "-b", NAME)
    info = document[NAME]
    assert (info["masterBrokerId"], info["masterAddress"], info["masterEpoch"]) == (1, "127.0.0.1:1", 1)
    assert [(r["brokerId"], r["alive"]) for r in info["inSyncReplicas"]] == [(1, True), (2, True)]
    assert [(r["brokerId"], r["alive"]) for r in info["notInSyncReplicas"]] == [(3, False)]
    assert await admin("getSyncStateSet", "-b", "other") == {}
    assert "either -b BROKER or -c CLUSTER" in await admin("getSyncStateSet")

    arguments = ["admin", "get-sync-state-set", "-a", controller.address, "-b", NAME]
    assert await asyncio.to_thread(run, arguments) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [NAME, "1", "127.0.0.1:1", "master", "yes", "yes"] in rows
    assert [NAME, "3", "127.0.0.1:3", "slave", "no", "no"] in rows


async def test_who_leads(admin: Admin, controller: Controller) -> None:
    assert await admin("getControllerMetaData") == {
        "group": "gantry",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": controller.address,
        "isLeader": True,
        "peers": [f"n0:{controller.address}"],
    }


async def test_another_master(admin: Admin) -> None:
    document = await admin("electMaster", "-b", "2", *SET)
    assert (document["masterBrokerId"], document["masterEpoch"]) == (2, 2)
    assert document["brokers"] == {"1": "127.0.0.1:1", "2": "127.0.0.1:2", "3": "127.0.0.1:3"}
    assert "The old master 2 is still alive" in await admin("electMaster", "-b", "2", *SET)
    assert "Failed to elect a new master" in await admin("electMaster", "-b", "3", *SET)


async def test_brokers_are_forgotten(admin: Admin, controller: Controller) -> None:
    assert "is still alive" in await admin("cleanBrokerMetadata", *SET)
    assert "is still alive" in await admin("cleanBrokerMetadata", "-b", "2;3", *SET)
    assert "-c CLUSTER is needed" in await admin("cleanBrokerMetadata", "-bn", NAME)
    assert "ids are numbers" in await admin("cleanBrokerMetadata", "-b", "x", *SET)
    assert await admin("cleanBrokerMetadata", "-b", "3", *SET) == {"brokerName": NAME, "brokerIds": [3]}
    known = controller.replicas.get(NAME)
    assert known is not None
    assert known.replicas.keys() == {1, 2}
    await admin("cleanBrokerMetadata", "-l", "-bn", NAME)
    assert controller.replicas.get(NAME) is None


async def test_configuration(admin: Admin, controller: Controller) -> None:
    assert (await admin("getControllerConfig"))[controller.address]["enableElectUncleanMaster"] == "false"
    await admin("updateControllerConfig", "-k", "enableElectUncleanMaster", "-v", "true")
    assert controller.config.enable_elect_unclean_master
    assert "black list" in await admin("updateControllerConfig", "-k", "configStorePath", "-v", "/x")


@asynccontextmanager
async def broker_with_epochs() -> AsyncIterator[str]:
    """Yields the address of a server that acts both as a NameServer and as its only broker."""
    server = RemotingServer({}, ListenOptions("127.0.0.1"))
    at = f"127.0.0.1:{server.port}"
    info = ClusterInfo({NAME: BrokerData(CLUSTER, NAME, {0: at})}, {CLUSTER: [NAME]})
    epochs = EpochEntryCache(CLUSTER, NAME, 1, [EpochEntry(1, 0, 500), EpochEntry(3, 500)], 900)
    handlers_of(server).update(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda c, r: RemotingCommand.response(body=encode_json(info)),
            RequestCode.GET_BROKER_EPOCH_CACHE: lambda c, r: RemotingCommand.response(body=encode_json(epochs)),
        }
    )
    await server.start()
    try:
        yield at
    finally:
        await server.stop()


async def test_epochs_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    async with broker_with_epochs() as at:
        for arguments in (["-b", NAME], ["-c", CLUSTER]):
            assert await asyncio.to_thread(run, ["admin", "getBrokerEpoch", *arguments, "-n", at, "--json"]) == 0
            (found,) = json.loads(capsys.readouterr().out)
            assert (found["brokerName"], found["brokerAddr"]) == (NAME, at)
            assert [(e["epoch"], e["startOffset"], e["endOffset"]) for e in found["epochs"]] == [
                (1, 0, 500),
                (3, 500, 900),
            ]
