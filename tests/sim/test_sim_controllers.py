"""Three controllers with a faulty state store: their responses form one history, and confirmed changes last.

Clients send requests to all controllers, leader or not. Each seed is a run. The planted bugs must be found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from sim.loop import SimLoop
from sim.state_store import SimEtcd, SimStateStore

from gantrymq.background.jobs import Jobs
from gantrymq.controller import leadership as leadership_module
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.changes import Changes
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.leases import Leases
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBroker
from gantrymq.controller.replicas import Replicas
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.bodies.controller import SyncStateSet
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetReplicaInfoResponseHeader,
)

NAME, CLUSTER = "broker-a", "c"
BROKERS = (1, 2, 3)
RUN_S = 120.0


def live(identity: BrokerIdentity) -> LiveBroker:
    return LiveBroker("b:1", None, 0, 1, 0)


class Controller:
    """The decision logic of a controller, without its network."""

    def __init__(self, number: int, store: SimStateStore) -> None:
        self.store = store
        self.replicas = Replicas()
        self.leadership = Leadership(store, Leader(f"n{number}", f"c:{number}"), Jobs(), self._elected)
        self.changes = Changes(self.replicas, self.leadership, Leases())

    def _elected(self, sets: Any) -> None:
        self.replicas.load(map(BrokerSet.decode, sets.values()))


@dataclass
class History:
    """Responses that clients received."""

    problems: list[str] = field(default_factory=list)
    #: Master and in-sync set of each epoch, from all responses.
    masters: dict[int, int | None] = field(default_factory=dict)
    sets: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: The newest (epoch, revision) in a response. Later requests must not get an older one.
    newest: tuple[int, int] = (0, 0)
    answers: int = 0
    elections: int = 0

    def told(self, since: tuple[int, int], master: int | None, epoch: int, members: tuple[int, ...], of: int) -> None:
        self.answers += 1
        if self.masters.setdefault(epoch, master) != master:
            self.problems.append(f"epoch {epoch} had the masters {self.masters[epoch]} and {master}")
        if self.sets.setdefault(of, members) != members:
            self.problems.append(f"epoch {of} had the sync-state sets {self.sets[of]} and {members}")
        if epoch < since[0] or of < since[1]:
            self.problems.append(f"after epochs {since} somebody was told of {(epoch, of)}")
        self.newest = max(epoch, self.newest[0]), max(of, self.newest[1])


async def client(controllers: list[Controller], history: History, chance: Random) -> None:
    """Elects masters, changes the in-sync set and reads it, at random and on a random controller."""
    known: tuple[int, int, int] = (0, 0, 0)
    while True:
        await asyncio.sleep(chance.expovariate(5))
        one = chance.choice(controllers)
        since = history.newest
        try:
            match chance.randrange(3):
                case 0:
                    header = ElectMasterRequestHeader(
                        cluster_name=CLUSTER, broker_name=NAME, broker_id=chance.choice(BROKERS), designate_elect=True
                    )

                    def elect(one: Controller = one, header: ElectMasterRequestHeader = header) -> Any:
                        return one.replicas.elect_master(header, live, unclean=True)

                    decision = await one.changes.make(NAME, elect)
                    found = decision.header
                    if decision.code == ResponseCode.SUCCESS and isinstance(found, ElectMasterResponseHeader):
                        history.elections += 1
                        assert found.master_broker_id is not None
                        master, epoch = found.master_broker_id, found.master_epoch or 0
                        of = found.sync_state_set_epoch or 0
                        history.told(since, master, epoch, (master,), of)
                        known = master, epoch, of
                case 1:
                    master, epoch, of = known
                    alter = AlterSyncStateSetRequestHeader(
                        broker_name=NAME, master_broker_id=master, master_epoch=epoch
                    )
                    wanted = SyncStateSet(sorted({master, *chance.sample(BROKERS, 2)}), of)

                    def change(one: Controller = one, alter: Any = alter, wanted: SyncStateSet = wanted) -> Any:
                        return one.replicas.alter_sync_state_set(alter, wanted, live)

                    decision = await one.changes.make(NAME, change)
                    if decision.code == ResponseCode.SUCCESS:
                        body = decode_json(decision.body, SyncStateSet)
                        members, of = tuple(body.sync_state_set), body.sync_state_set_epoch
                        history.told(since, master, epoch, members, of)
                        known = master, epoch, of
                case _:
                    one.leadership.check()
                    decision = one.replicas.get_replica_info(NAME)
                    info = decision.header
                    if decision.code == ResponseCode.SUCCESS and isinstance(info, GetReplicaInfoResponseHeader):
                        body = decode_json(decision.body, SyncStateSet)
                        master_now, epoch, of = info.master_broker_id, info.master_epoch or 0, body.sync_state_set_epoch
                        history.told(since, master_now, epoch, tuple(body.sync_state_set), of)
                        known = master_now or 0, epoch, of
        except RequestRefused:
            continue


def simulate(seed: int, monkeypatch: pytest.MonkeyPatch) -> History:
    chance = Random(seed)
    loop = SimLoop(Random(seed))
    monkeypatch.setattr(leadership_module, "monotonic", loop.time)
    history = History()

    async def run() -> None:
        etcd = SimEtcd(loop.time)
        controllers = [Controller(i, SimStateStore(etcd, Random(f"{seed} {i}"))) for i in range(3)]
        for controller in controllers:
            await controller.leadership.start()
        (leader,) = (controller for controller in controllers if controller.leadership.is_leader)
        for broker_id in BROKERS:
            apply = ApplyBrokerIdRequestHeader(
                cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=broker_id, register_check_code="b:1;1"
            )
            await leader.changes.make(NAME, lambda apply=apply: leader.replicas.apply_broker_id(apply))
        for controller in controllers:
            controller.store.trouble = chance.choice((0.02, 0.1, 0.3))
        clients = [asyncio.ensure_future(client(controllers, history, Random(f"{seed} client {i}"))) for i in range(4)]
        await asyncio.sleep(RUN_S)
        for controller in controllers:
            controller.store.trouble = 0.0
        await asyncio.sleep(40)
        before = history.elections
        await asyncio.sleep(5)
        if history.elections == before:
            history.problems.append("nobody is elected any more")
        for task in clients:
            task.cancel()
        for ended in await asyncio.gather(*clients, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise ended
        for controller in controllers:
            await controller.changes.stop()
            await controller.leadership.stop()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    return history


#: The last two seeds once found a change that was confirmed but not kept: its controller led again by then.
@pytest.mark.parametrize("seed", [*range(10), 71, 142])
def test_one_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    history = simulate(seed, monkeypatch)
    assert history.problems == []
    assert history.answers > 200
    assert history.elections > 20


# -- planted bugs -----------------------------------------------------------------------------------------------


def any_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug: a change compares neither the leader's key nor the revision of the broker set."""
    put = SimEtcd.put

    def put_over(self: SimEtcd, leader: int, name: str, value: bytes, known: int) -> int | None:
        revision = self.held.revision if self.held is not None else leader
        return put(self, revision, name, value, self._sets.get(name, (b"", 0))[1])

    monkeypatch.setattr(SimEtcd, "put", put_over)


def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug: a leader responds until it is notified of its end, even without a lease."""
    monkeypatch.setattr(Leadership, "is_leader", property(lambda self: self._term is not None))


def not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug: a new leader continues with its cached state."""

    async def load(self: SimStateStore) -> dict[str, bytes]:
        sets = await SimStateStore._request(self, self._etcd.sets)
        self._revisions = {name: revision for name, (_, revision) in sets.items()}
        return {}

    def elected(self: Controller, sets: Any) -> None:
        pass

    monkeypatch.setattr(SimStateStore, "load", load)
    monkeypatch.setattr(Controller, "_elected", elected)


@pytest.mark.parametrize("bug", [any_leader, no_lease, not_read_again])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert any(simulate(seed, monkeypatch).problems for seed in range(12))


def test_the_store_holds_its_own_rules() -> None:
    """Checks the guarantees of the store without controllers."""
    loop = SimLoop(Random(1))

    async def run() -> None:
        etcd = SimEtcd(loop.time)
        a, b = (SimStateStore(etcd, Random(i)) for i in range(2))
        first = await a.campaign(Leader("a", "a:1"))
        assert first is not None
        assert await b.campaign(Leader("b", "b:1")) is None
        assert await b.leader() == Leader("a", "a:1")
        assert await a.commit(first, "x", b"1")
        await asyncio.sleep(4)
        kept = await a.keep(first)
        assert kept is not None
        await asyncio.sleep(4)
        assert await a.commit(kept, "x", b"2")
        await asyncio.sleep(2)
        second = await b.campaign(Leader("b", "b:1"))
        assert second is not None
        assert second.number > first.number
        assert not await a.commit(kept, "x", b"3")
        assert await a.keep(kept) is None
        assert await b.load() == {"x": b"2"}
        with pytest.raises(GantryError):
            await SimStateStore(etcd, Random(3)).commit(Term(second.number, 0.0), "x", b"4")

    loop.run_until_complete(run())
    loop.close()
