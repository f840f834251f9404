"""A controller over the network.

Brokers register, their master fails, another one is elected, and all brokers are notified.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from constants import change_constant
from controller_support import CLUSTER, NAME, Broker, address, controller_config, elect_header, register_header, running
from otlp_collector import collector_over_http, labels_of
from ports import free_port
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.controller.controllers import Controllers, Progress
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.config import ControllerConfig, Place, place_of
from gantrymq.controller.live_brokers import BrokerIdentity
from gantrymq.controller.server import Controller
from gantrymq.controller.sqlite_store import SqliteStore
from gantrymq.controller.state_store import Leader, StateStore, Term
from gantrymq.errors import ConfigError, GantryError
from gantrymq.metrics_export import MetricsExporterType
from gantrymq.protocol.bodies.controller import BrokerReplicasInfo, SyncStateSet
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.controller import (
    ControllerHeartbeatRequestHeader,
    GetMetaDataResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.store.config import StoreConfig


class Told:
    """A server that records the controllers' notifications of brokers."""

    def __init__(self) -> None:
        self.server = RemotingServer({RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._told}, ListenOptions("127.0.0.1"))
        self.address = f"127.0.0.1:{self.server.port}"
        self.changes: list[tuple[NotifyBrokerRoleChangedRequestHeader, SyncStateSet]] = []

    def _told(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(NotifyBrokerRoleChangedRequestHeader)
        self.changes.append((header, decode_json(request.body, SyncStateSet)))
        return RemotingCommand.response()


@asynccontextmanager
async def told() -> AsyncIterator[Told]:
    one = Told()
    await one.server.start()
    try:
        yield one
    finally:
        await one.server.stop()


@asynccontextmanager
async def brokers(controller: Controller, *at: str | None) -> AsyncIterator[list[Broker]]:
    """Registers a broker set with ids from 1. The first broker is the master, and all are in sync."""
    made = [Broker(controller, at=each) for each in at]
    try:
        for broker in made:
            await broker.start()
        await made[0].elect()
        if len(made) > 1:
            answer = await made[0].in_sync(*(broker.broker_id for broker in made))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        yield made
    finally:
        for broker in made:
            await broker.die()


async def master(broker: Broker) -> tuple[int | None, int | None]:
    header, _ = await broker.info()
    return header.master_broker_id, header.master_epoch


async def test_another_is_elected_when_the_master_dies(tmp_path: Path) -> None:
    async with (
        told() as a,
        told() as b,
        running(tmp_path) as controller,
        brokers(controller, None, a.address, b.address) as (first, second, third),
    ):
        await second.heartbeat(offset=100)
        await third.heartbeat(offset=200)
        await first.die()
        await is_gone(controller, first)
        await second.heartbeat()
        await third.heartbeat()
        await until(lambda: len(a.changes) == len(b.changes) == 2)
        assert await master(second) == (3, 2)
        for changes in (a.changes, b.changes):
            (_, (header, body)) = changes
            assert (header.master_broker_id, header.master_address) == (3, b.address)
            assert (header.master_epoch, header.sync_state_set_epoch) == (2, 3)
            assert (body.sync_state_set, body.sync_state_set_epoch) == ([3], 3)
        assert controller.elections.held == {"new_master_elected": 2}


async def test_who_was_not_told_of_the_master_is_granted_no_lease(tmp_path: Path) -> None:
    """A broker gets no lease before it is notified of the current master.

    It was master, was silent for too long, and continues before that notification.
    """
    async with running(tmp_path) as controller, brokers(controller, None) as (broker,):
        assert await leases(controller, broker, 0, 1, 2) == [0, 4, 0]


async def leases(controller: Controller, broker: Broker, *told_epochs: int) -> list[float | None]:
    """Sends one heartbeat per epoch, and returns the granted leases in seconds.

    The epoch is that of the last master that the broker was notified of.
    """
    config = BrokerConfig(
        broker_cluster_name=CLUSTER,
        broker_name=NAME,
        enable_controller_mode=True,
        controller_addr=[controller.address],
        store=StoreConfig(Path("not-used")),
    )
    remoting = RemotingClient()
    controllers = Controllers(config, broker.address, remoting)
    try:
        return [
            await controllers.heartbeat(controller.address, broker.broker_id, Progress(1, 0, 0), told)
            for told in told_epochs
        ]
    finally:
        await remoting.close()


async def is_gone(controller: Controller, broker: Broker) -> None:
    """Waits until the controller detects the end of the broker's connection."""
    identity = BrokerIdentity(CLUSTER, NAME, broker.broker_id)
    await until(lambda: controller.live_brokers.active(identity, 0) is None)


async def test_who_died_a_moment_ago_is_not_elected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just failed is not elected.

    It would be the only in-sync replica, and there would be no master until it is back.
    """
    async with running(tmp_path) as controller, brokers(controller, None, None, None) as (first, second, third):
        await third.heartbeat(offset=200)
        await first.die()
        await is_gone(controller, first)
        await second.heartbeat(offset=100)
        await until(lambda: _is_master(second, 2))
        # The third broker has a longer log and counts as live, but is silent. So it does not become master, either.
        assert (await second.in_sync(2, 3)).code == ResponseCode.SUCCESS
        change_constant(monkeypatch, "elections.WORD_S", 0.05)
        header = elect_header(3, designate=True)
        refused = await second.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)
        assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert await master(second) == (2, 2)
        await third.die()


async def test_a_master_whose_connection_was_closed_stays_when_it_comes_again(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, brokers(controller, None, None) as (first, second):
        await first.die()
        await is_gone(controller, first)
        again = Broker(controller)
        again.broker_id = 1
        await again.heartbeat()
        await until(lambda: controller.elections.held["keep_current_master"])
        await second.heartbeat()
        assert await master(second) == (1, 1)
        await again.die()


async def test_another_is_elected_when_the_master_falls_silent(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, brokers(controller, None, None) as (first, second):
        await first.heartbeat(timeout_ms=50)
        await until(lambda: _is_master(second, 2))
        assert first.broker_id == 1
        await first.register()


async def _is_master(broker: Broker, broker_id: int) -> bool:
    return (await master(broker))[0] == broker_id


async def test_no_other_is_elected_when_nobody_is_in_sync(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, brokers(controller, None) as (first,):
        second = Broker(controller)
        await second.start()
        await first.die()
        await until(lambda: controller.elections.held["no_master_elected"])
        assert await master(second) == (None, 2)
        answer = await second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(2))
        assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        # The first broker returns with its log.
        again = Broker(controller, at=address(1))
        again.broker_id = 1
        registered = (await again.register()).read_header(RegisterBrokerToControllerResponseHeader)
        assert registered.master_broker_id is None
        await again.heartbeat()
        assert (await again.elect()).master_epoch == 3
        await again.die()
        await second.die()


async def test_a_master_that_comes_back_before_its_end_is_noticed_stays(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, brokers(controller, None, None) as (first, second):
        again = Broker(controller)
        again.broker_id = 1
        await again.heartbeat()
        await first.die()
        await until(lambda: len(controller._server.connections) == 2)
        assert await master(second) == (1, 1)
        await again.die()


async def test_masters_are_handed_over(tmp_path: Path) -> None:
    async with told() as a, running(tmp_path) as controller, brokers(controller, a.address, None) as (first, second):
        elected = await second.elect(designate=True)
        assert (elected.master_broker_id, elected.master_epoch, elected.sync_state_set_epoch) == (2, 2, 3)
        await until(lambda: len(a.changes) == 2)
        assert a.changes[-1][0].master_broker_id == 2
        # The controller rejects later requests of the old master.
        refused = await first.in_sync(1, 2)
        assert refused.code == ResponseCode.CONTROLLER_INVALID_MASTER


async def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, brokers(controller, None, None) as (first, second):
        before = await second.info()
        # The controller stops before its brokers.
        await controller.stop()
    async with running(tmp_path) as controller:
        again = Broker(controller)
        again.broker_id = 2
        await again.heartbeat()
        answer = (await again.register()).read_header(RegisterBrokerToControllerResponseHeader)
        assert answer.master_broker_id is None
        # The master has not sent a heartbeat yet, but that does not start an election.
        assert await again.info() == before
        assert before[0].master_address == first.address
        (looking,) = (report for report in controller.jobs if report.name == "look for masters that are gone")
        assert looking.runs == 0
        await again.die()


async def test_what_is_asked_of_it_at_once_is_done_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as controller:
        one = Broker(controller)
        await one.start()
        requests = [one.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(1)) for _ in range(50)]
        codes = [answer.code for answer in await asyncio.gather(*requests)]
        assert sorted(codes) == [ResponseCode.SUCCESS] + [ResponseCode.CONTROLLER_MASTER_STILL_EXIST] * 49
        assert await master(one) == (1, 1)
        await one.die()


async def test_many_sets_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as controller:
        made = [Broker(controller, f"broker-{i}") for i in range(50)]
        await asyncio.gather(*(broker.start() for broker in made))
        await asyncio.gather(*(broker.elect() for broker in made))
        body = encode_json([broker.name for broker in made] + ["unknown"])
        answer = await made[0].do(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        table = decode_json(answer.body, BrokerReplicasInfo).replicas_info_table
        assert len(table) == 50
        assert {info.master_broker_id for info in table.values()} == {1}
        for broker in made:
            await broker.die()


async def test_metadata_names_the_leader(tmp_path: Path) -> None:
    async with running(tmp_path, group="g", self_id="n7") as controller:
        one = Broker(controller)
        header = (await one.do(RequestCode.CONTROLLER_GET_METADATA_INFO)).read_header(GetMetaDataResponseHeader)
        assert header == GetMetaDataResponseHeader(
            group="g",
            controller_leader_id="n7",
            controller_leader_address=controller.address,
            is_leader=True,
            peers=f"n7:{controller.address};",
        )
        await one.die()


async def test_requests_that_say_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as controller:
        one = Broker(controller)
        nothing = await one.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
        assert (nothing.code, nothing.remark) == (ResponseCode.SYSTEM_ERROR, "not set any response code")
        header = ControllerHeartbeatRequestHeader(cluster_name=CLUSTER, broker_addr="a:1", broker_name=NAME)
        empty = await one.ask(RequestCode.BROKER_HEARTBEAT, header)
        assert (empty.code, empty.remark) == (
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            "Heart beat with empty brokerId",
        )
        await one.die()


async def test_configuration_over_the_network(tmp_path: Path) -> None:
    async with running(tmp_path) as controller:
        one = Broker(controller)
        text = (await one.do(RequestCode.GET_CONTROLLER_CONFIG)).body.decode()
        assert "enableElectUncleanMaster=false\n" in text
        await one.do(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n")
        assert controller.config.enable_elect_unclean_master
        assert "enableElectUncleanMaster=true" in controller.config.config_store_path.read_text()
        refused = await one.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"configStorePath=/x\n")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert (refused.remark or "").startswith("Can not update config in black list")
        await one.die()


async def test_it_tells_prometheus(tmp_path: Path) -> None:
    config = controller_config(tmp_path)
    config.metrics_port = free_port()
    controller = Controller(config)
    await controller.start()
    try:
        async with brokers(controller, None, None):
            url = f"http://127.0.0.1:{config.metrics_port}/metrics"
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        own = f'address="{controller.leadership.me.address}",group="gantry",peer_id="n0"'
        of_set = f'{own},cluster="DefaultCluster",broker_set="broker-a"'
        assert f"rocketmq_controller_master_broker_id{{{of_set}}} 1" in text
        assert f"rocketmq_controller_active_broker_num{{{of_set}}} 2" in text
        assert f'rocketmq_controller_election_total{{{own},election_result="new_master_elected"}} 1' in text
        assert f"rocketmq_controller_is_leader{{{own}}} 1" in text
        assert f'gantry_job_runs_total{{{own},job="lead or follow"}}' in text
    finally:
        await controller.stop()


async def test_it_tells_a_collector(tmp_path: Path) -> None:
    with collector_over_http() as (target, collector):
        config = controller_config(tmp_path)
        config.metrics_exporter_type = MetricsExporterType.OTLP_HTTP
        config.metrics_grpc_exporter_target = target
        config.metric_grpc_exporter_interval_in_mills = 100
        config.metrics_label = "zone:eu"
        controller = Controller(config)
        await controller.start()
        try:
            assert controller.metrics_port == 0
            await until(lambda: collector.received)
            assert collector.scope().scope.name == "controller"
            [uptime] = collector.metrics()["rocketmq_controller_uptime"].gauge.data_points
            address = controller.leadership.me.address
            assert labels_of(uptime) == {"zone": "eu", "address": address, "group": "gantry", "peer_id": "n0"}
        finally:
            await controller.stop()


def test_peers_say_who_it_is() -> None:
    one = ControllerConfig(self_id="n1", peers=["n1-10.0.0.1:9999"])
    assert place_of(one) == Place(9999, "10.0.0.1:9999")
    assert place_of(ControllerConfig(listen_port=1)) == Place(1, None)
    three = [f"n{i}-10.0.0.{i}:9878" for i in (1, 2, 3)]
    assert place_of(ControllerConfig(self_id="n1", peers=three, etcd_endpoints=["http://e:2379"])).port == 9878
    for peers in (["n0-10.0.0.1:9999"], ["n1"], ["n1-nowhere"], ["n1-a:1", "n2-b:1"]):
        with pytest.raises(ConfigError, match="controllerDLegerPeers"):
            place_of(ControllerConfig(self_id="n1", peers=peers))


# -- a store that fails -----------------------------------------------------------------------------------------


class FailingStore:
    """Wraps a state store. A test can make it fail, or give the leader's key to another controller."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.interval_s = 0.01
        self.fails: str | None = None
        self.other: Leader | None = None
        #: While this is not set, changes wait.
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.asked = 0

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def campaign(self, me: Leader) -> Term | None:
        return None if self.other else await self._store.campaign(me)

    async def keep(self, term: Term) -> Term | None:
        return None if self.other else term

    async def resign(self, term: Term) -> None:
        pass

    async def leader(self) -> Leader | None:
        return self.other

    async def load(self) -> dict[str, bytes]:
        return await self._store.load()

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        self.asked += 1
        await self.goes_on.wait()
        if self.fails == "before":
            raise GantryError("no store")
        if self.other is not None:
            return False
        is_kept = await self._store.commit(term, name, value)
        if self.fails == "after":
            raise GantryError("no answer")
        return is_kept


@asynccontextmanager
async def with_failing_store(directory: Path) -> AsyncIterator[tuple[Controller, FailingStore]]:
    store = FailingStore(SqliteStore(directory / "state", Jobs(), BrokerSet.check_kept))
    controller = Controller(controller_config(directory), store=store)
    try:
        await controller.start()
        yield controller, store
    finally:
        store.goes_on.set()
        await controller.stop()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_is_not_known_to_be_kept_is_read_again(tmp_path: Path, when: str) -> None:
    async with with_failing_store(tmp_path) as (controller, store), brokers(controller, None, None) as (_, second):
        store.fails = when
        answer = await second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(2, designate=True))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        store.fails = None
        await until(lambda: controller.leadership.is_leader)
        assert await master(second) == ((1, 1) if when == "before" else (2, 2))


async def test_a_deposed_leader_says_so(tmp_path: Path) -> None:
    async with with_failing_store(tmp_path) as (controller, store), brokers(controller, None, None) as (_, second):
        store.other = Leader("n1", "10.0.0.1:9878")
        answer = await second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(2, designate=True))
        assert (answer.code, answer.remark) == (
            ResponseCode.CONTROLLER_NOT_LEADER,
            "The controller is not in leader state",
        )
        await until(lambda: controller.leadership.leader == store.other)
        header = (await second.do(RequestCode.CONTROLLER_GET_METADATA_INFO)).read_header(GetMetaDataResponseHeader)
        assert (header.is_leader, header.controller_leader_address) == (False, "10.0.0.1:9878")
        for code in (RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID):
            assert (await second.ask(code, register_header(2))).code == ResponseCode.CONTROLLER_NOT_LEADER
        # A controller that does not lead still receives heartbeats, for its next term.
        await second.heartbeat()
        store.other = None
        await until(lambda: controller.leadership.is_leader)
        assert await master(second) == (1, 1)


async def test_what_was_not_kept_is_not_answered_in_the_next_term(tmp_path: Path) -> None:
    """A request whose decision was not stored is refused in the leader's next term.

    The simulation found this case.
    """
    async with with_failing_store(tmp_path) as (controller, store), brokers(controller, None, None) as (_, second):
        store.goes_on.clear()
        asked = store.asked
        elect = second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(2, designate=True))
        answer = asyncio.ensure_future(elect)
        await until(lambda: store.asked > asked)
        store.other = Leader("n1", "10.0.0.1:9878")
        await until(lambda: not controller.leadership.is_leader)
        store.other = None
        await until(lambda: controller.leadership.is_leader)
        store.goes_on.set()
        assert (await answer).code == ResponseCode.CONTROLLER_NOT_LEADER
        assert await master(second) == (1, 1)


@pytest.mark.parametrize("when", ["kept", "before"])
async def test_no_lease_is_granted_while_another_master_is_kept(tmp_path: Path, when: str) -> None:
    async with with_failing_store(tmp_path) as (controller, store), brokers(controller, None, None) as (first, second):
        store.goes_on.clear()
        asked = store.asked
        elect = second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect_header(2, designate=True))
        answer = asyncio.ensure_future(elect)
        await until(lambda: store.asked > asked)
        assert await leases(controller, first, 1) == [0]
        store.fails = when
        store.goes_on.set()
        is_kept = (await answer).code == ResponseCode.SUCCESS
        await until(lambda: controller.leadership.is_leader)
        assert await leases(controller, first, 1, 2) == ([0, 4] if is_kept else [4, 0])
        assert is_kept == (when == "kept")


async def test_leases_are_granted_while_the_set_in_sync_is_kept(tmp_path: Path) -> None:
    """While a new in-sync set is being stored, the master gets leases, because it does not change."""
    async with with_failing_store(tmp_path) as (controller, store), brokers(controller, None, None) as (first, _):
        store.goes_on.clear()
        asked = store.asked
        answer = asyncio.ensure_future(first.in_sync(1))
        await until(lambda: store.asked > asked)
        assert await leases(controller, first, 1) == [4]
        store.goes_on.set()
        assert (await answer).code == ResponseCode.SUCCESS
