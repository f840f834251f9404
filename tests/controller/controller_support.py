"""Helpers of the controller tests: a broker set in the controller's tables, and a controller on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBroker
from gantrymq.controller.replicas import Decision, Live, Replicas
from gantrymq.controller.server import Controller
from gantrymq.protocol.bodies.controller import SyncStateSet
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerSetRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
)
from gantrymq.protocol.headers.header import Header
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import RpcHook

CLUSTER = "DefaultCluster"
NAME = "broker-a"


def address(broker_id: int) -> str:
    """Returns an address on which nothing listens."""
    return f"127.0.0.1:{broker_id}"


def check_code(broker_id: int) -> str:
    return f"{address(broker_id)};1700000000000"


class Brokers:
    """The controller's tables with one broker set, and the live brokers: {id: (epoch, offset, priority)}."""

    def __init__(self, count: int = 0, *, live: int | None = None) -> None:
        self.replicas = Replicas()
        self.living: dict[int, tuple[int, int, int]] = {}
        for broker_id in range(1, count + 1):
            self.do(self.apply(broker_id))
        for broker_id in range(1, (count if live is None else live) + 1):
            self.lives(broker_id)

    @property
    def now(self) -> BrokerSet:
        known = self.replicas.get(NAME)
        assert known is not None
        return known

    def lives(self, broker_id: int, epoch: int = 1, offset: int = 0, priority: int = 0) -> None:
        self.living[broker_id] = epoch, offset, priority

    @property
    def live(self) -> Live:
        def live(identity: BrokerIdentity) -> LiveBroker | None:
            assert identity.cluster_name == CLUSTER
            found = self.living.get(identity.broker_id)
            if found is None:
                return None
            epoch, offset, priority = found
            return LiveBroker(address(identity.broker_id), None, 0, 1, priority, epoch, offset)

        return live

    def do(self, decision: Decision) -> Decision:
        """Checks and applies a decision, as `Changes` does."""
        changed = decision.changed
        if changed is not None:
            changed.check_follows(self.replicas.any(changed.broker_name))
            self.replicas.apply(BrokerSet.decode(changed.encode()))
        return decision

    def apply(self, broker_id: int, code: str | None = None) -> Decision:
        return self.replicas.apply_broker_id(apply_header(broker_id, code))

    def register(self, broker_id: int, at: str | None = None) -> Decision:
        return self.do(self.replicas.register_broker(register_header(broker_id, at), self.live))

    def elect(self, broker_id: int = -1, *, designate: bool = False, unclean: bool = False) -> Decision:
        header = elect_header(broker_id, designate=designate)
        return self.do(self.replicas.elect_master(header, self.live, unclean=unclean))

    def alter(
        self, *members: int, master: int | None = None, epoch: int | None = None, of: int | None = None
    ) -> Decision:
        """Changes the in-sync set. By default, the current master does so, with current epochs."""
        now = self.now
        header = AlterSyncStateSetRequestHeader(
            broker_name=NAME,
            master_broker_id=now.master or 0 if master is None else master,
            master_epoch=now.master_epoch if epoch is None else epoch,
        )
        body = SyncStateSet(list(members), now.sync_state_set_epoch if of is None else of)
        return self.do(self.replicas.alter_sync_state_set(header, body, self.live))

    def clean(self, ids: str | None = None, *, living: bool = False) -> Decision:
        header = clean_header(ids, living=living)
        return self.do(self.replicas.clean_broker_data(header, self.live))


def apply_header(broker_id: int, code: str | None = None, name: str = NAME) -> ApplyBrokerIdRequestHeader:
    return ApplyBrokerIdRequestHeader(
        cluster_name=CLUSTER,
        broker_name=name,
        applied_broker_id=broker_id,
        register_check_code=check_code(broker_id) if code is None else code,
    )


def register_header(broker_id: int, at: str | None = None, name: str = NAME) -> RegisterBrokerToControllerRequestHeader:
    return RegisterBrokerToControllerRequestHeader(
        cluster_name=CLUSTER, broker_name=name, broker_id=broker_id, broker_address=at or address(broker_id)
    )


def elect_header(broker_id: int = -1, *, designate: bool = False, name: str = NAME) -> ElectMasterRequestHeader:
    return ElectMasterRequestHeader(
        cluster_name=CLUSTER, broker_name=name, broker_id=broker_id, designate_elect=designate
    )


def clean_header(ids: str | None = None, *, living: bool = False) -> CleanControllerBrokerDataRequestHeader:
    return CleanControllerBrokerDataRequestHeader(
        broker_name=NAME, cluster_name=CLUSTER, broker_controller_ids_to_clean=ids, is_clean_living_broker=living
    )


# -- over the network -------------------------------------------------------------------------------------------


def controller_config(directory: Path, **changes: object) -> ControllerConfig:
    config = ControllerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        controller_store_path=directory / "state",
        config_store_path=directory / "controller.properties",
    )
    for name, value in changes.items():
        setattr(config, name, value)
    return config


@asynccontextmanager
async def running(directory: Path, **changes: object) -> AsyncIterator[Controller]:
    controller = Controller(controller_config(directory, **changes))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.stop()


class Broker:
    """A broker in controller mode, as far as a controller sees it.

    It has its own connection, and `die` closes that.
    """

    def __init__(
        self, controller: Controller, name: str = NAME, at: str | None = None, *, hooks: Sequence[RpcHook] = ()
    ) -> None:
        self.client = RemotingClient(hooks=hooks)
        self.controller = controller.address
        self.name = name
        self._at = at
        self.broker_id = 0

    @property
    def address(self) -> str:
        return self._at or address(self.broker_id)

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.client.invoke(self.controller, RemotingCommand.request(code, header, body))

    async def do(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Sends a request that must succeed, and returns the response."""
        answer = await self.ask(code, header, body)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    async def start(self) -> None:
        """Gets a broker id, registers, and sends a heartbeat.

        Source: `ReplicasManager.startBasicService`, without the election.
        """
        header = BrokerSetRequestHeader(cluster_name=CLUSTER, broker_name=self.name)
        answer = await self.do(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        self.broker_id = answer.read_header(GetNextBrokerIdResponseHeader).next_broker_id or 0
        await self.do(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            apply_header(self.broker_id, f"{self.address};1", self.name),
        )
        await self.register()
        await self.heartbeat()

    async def register(self) -> RemotingCommand:
        header = register_header(self.broker_id, self.address, self.name)
        return await self.do(RequestCode.CONTROLLER_REGISTER_BROKER, header)

    async def heartbeat(self, *, timeout_ms: int | None = 10_000, epoch: int = 1, offset: int = 0) -> None:
        header = ControllerHeartbeatRequestHeader(
            cluster_name=CLUSTER,
            broker_addr=self.address,
            broker_name=self.name,
            broker_id=self.broker_id,
            heartbeat_timeout_mills=timeout_ms,
            epoch=epoch,
            max_offset=offset,
        )
        await self.do(RequestCode.BROKER_HEARTBEAT, header)

    async def elect(self, *, designate: bool = False) -> ElectMasterResponseHeader:
        """Requests an election, and returns the response with the current master."""
        header = elect_header(self.broker_id, designate=designate, name=self.name)
        answer = await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST), answer.remark
        return answer.read_header(ElectMasterResponseHeader)

    async def info(self) -> tuple[GetReplicaInfoResponseHeader, SyncStateSet]:
        answer = await self.do(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader(broker_name=self.name)
        )
        header = answer.read_header(GetReplicaInfoResponseHeader)
        return header, decode_json(answer.body, SyncStateSet)

    async def in_sync(self, *members: int) -> RemotingCommand:
        """Reports the in-sync set of this broker, which is the master."""
        header, now = await self.info()
        return await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetRequestHeader(
                broker_name=self.name, master_broker_id=self.broker_id, master_epoch=header.master_epoch or 0
            ),
            encode_json(SyncStateSet(list(members), now.sync_state_set_epoch)),
        )

    async def die(self) -> None:
        await self.client.close()
