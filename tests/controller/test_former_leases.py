"""A master is not replaced while its lease can still be valid.

The lease can come from a former leading controller, or from a heartbeat during the election.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from controller_support import CLUSTER, NAME, address, apply_header, elect_header
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gantrymq.broker.controller.lease import Lease
from gantrymq.broker.controller.roles import BrokerSetState, Roles
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.former_leases import FormerLeases
from gantrymq.controller.leases import Leases
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBrokers
from gantrymq.controller.replicas import NO_BROKER, Decision, Live, Replicas

IDS = (1, 2, 3)
CONTROLLERS = ("n0", "n1")

#: The heartbeat timeout that each broker requests, in milliseconds.
TIMEOUTS_MS = {1: 3000, 2: 1000, 3: 30_000}

ids = st.sampled_from(IDS)
controllers = st.sampled_from(CONTROLLERS)


class Controller:
    """One of two controllers. Both use the same state store."""

    def __init__(self) -> None:
        self.live_brokers = LiveBrokers()
        self.former_leases = FormerLeases()
        self.leases = Leases()


class LeaseMachine(RuleBasedStateMachine):
    """Three brokers, all in sync. Links are cut silently, or closed by a broker that stops."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.replicas = Replicas()
        for broker_id in IDS:
            self.change(self.replicas.apply_broker_id(apply_header(broker_id)))
        self.controllers = {name: Controller() for name in CONTROLLERS}
        self.leader: str | None = None
        self.leases = {broker_id: Lease() for broker_id in IDS}
        self.roles = {broker_id: Roles(broker_id) for broker_id in IDS}
        self.living = set(IDS)
        self.cut: set[tuple[int, str]] = set()
        #: A decision that is not in the state store yet.
        self.under_way: BrokerSet | None = None
        self.commit = ExitStack()
        self.lead("n0")
        for broker_id in IDS:
            self.heartbeat(broker_id, "n0")
        self.elect(1)

    def change(self, decision: Decision) -> None:
        if decision.changed is not None:
            self.replicas.apply(decision.changed)

    # -- events -------------------------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 4000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(name=controllers)
    def lead(self, name: str) -> None:
        """Makes a controller the only leader.

        Pending decisions of the former leader are stored by now or lost.
        """
        self.commit_ends(is_kept=False)
        self.leader = name
        self.controllers[name].former_leases.begin(self.now_ms)

    @rule()
    def nobody_leads(self) -> None:
        self.leader = None

    @rule(broker_id=ids, name=controllers)
    def heartbeat(self, broker_id: int, name: str) -> None:
        if broker_id not in self.living or (broker_id, name) in self.cut:
            return
        self.controllers[name].live_brokers.heartbeat(
            BrokerIdentity(CLUSTER, NAME, broker_id),
            address(broker_id),
            broker_id,
            self.now_ms,
            timeout_ms=TIMEOUTS_MS[broker_id],
            epoch=1,
        )
        self.controllers[name].former_leases.heard(BrokerIdentity(CLUSTER, NAME, broker_id), self.now_ms)
        is_told = self.roles[broker_id].role.epoch == self.known.master_epoch
        granted_ms = self.controllers[name].leases.granted_ms(
            NAME, TIMEOUTS_MS[broker_id], is_leader=self.leader == name
        )
        lease_ms = granted_ms if is_told else 0
        self.leases[broker_id].answered(self.now_ms / 1000, lease_ms / 1000)

    @rule()
    def all_heartbeats(self) -> None:
        for broker_id in IDS:
            for name in CONTROLLERS:
                self.heartbeat(broker_id, name)

    @rule(broker_id=ids, name=controllers)
    def link_is_cut_or_heals(self, broker_id: int, name: str) -> None:
        self.cut ^= {(broker_id, name)}

    @rule()
    def commit_begins(self) -> None:
        """Elects a master. The state store takes time to store the result."""
        if self.leader is None or self.under_way is not None:
            return
        if self.replicas.without_living_master(self.live) and not self.former_lease_ms:
            self.under_way = self.replicas.elect_master(elect_header(NO_BROKER), self.live, unclean=True).changed
            self.commit.enter_context(self.controllers[self.leader].leases.ending(NAME))

    @rule(is_kept=st.booleans())
    def commit_ends(self, is_kept: bool) -> None:
        """Notifies the elected master at once. The other brokers are notified at any later time."""
        changed, self.under_way = self.under_way, None
        if changed is not None and is_kept:
            self.replicas.apply(changed)
            if changed.master is not None:
                self.leader_tells(changed.master)
        self.commit.close()

    @rule(broker_id=ids)
    def leader_tells(self, broker_id: int) -> None:
        if self.leader is not None and broker_id in self.living and (broker_id, self.leader) not in self.cut:
            self.tell(broker_id)

    @rule(broker_id=ids)
    def broker_ends(self, broker_id: int) -> None:
        if len(self.living) < 2:
            return
        self.living.discard(broker_id)
        for name in CONTROLLERS:
            if (broker_id, name) in self.cut:
                continue
            gone = self.controllers[name].live_brokers.connection_closed(broker_id)
            if name == self.leader and gone and self.known.master == broker_id and self.under_way is None:
                self.elect(NO_BROKER)

    @rule(broker_id=ids)
    def broker_begins(self, broker_id: int) -> None:
        if broker_id not in self.living:
            self.living.add(broker_id)
            self.leases[broker_id], self.roles[broker_id] = Lease(), Roles(broker_id)
            # GantryMQ's controllers grant leases, but this broker has none yet.
            self.leases[broker_id].answered(self.now_ms / 1000, 0.0)

    @rule()
    def leader_looks(self) -> None:
        if self.leader is None:
            return
        self.controllers[self.leader].live_brokers.expire(self.now_ms)
        if self.replicas.without_living_master(self.live):
            self.elect_unless_a_lease_may_hold(NO_BROKER)

    @rule(broker_id=ids)
    def broker_asks_for_a_master(self, broker_id: int) -> None:
        if self.leader is not None and broker_id in self.living and (broker_id, self.leader) not in self.cut:
            self.elect_unless_a_lease_may_hold(broker_id)
            self.tell(broker_id)

    # -- the leading controller ---------------------------------------------------------------------------------

    @property
    def known(self) -> BrokerSet:
        found = self.replicas.get(NAME)
        assert found is not None
        return found

    @property
    def live(self) -> Live:
        assert self.leader is not None
        return partial(self.controllers[self.leader].live_brokers.active, now_ms=self.now_ms)

    @property
    def former_lease_ms(self) -> int:
        assert self.leader is not None
        return self.controllers[self.leader].former_leases.left_ms(self.known, self.live, self.now_ms)

    def elect_unless_a_lease_may_hold(self, asked_by: int) -> None:
        # A broker set has only one pending change at a time.
        if self.under_way is None and not self.former_lease_ms:
            self.elect(asked_by)

    def elect(self, asked_by: int) -> None:
        self.change(self.replicas.elect_master(elect_header(asked_by), self.live, unclean=True))
        for broker_id in self.living:
            if self.live(BrokerIdentity(CLUSTER, NAME, broker_id)) and (broker_id, self.leader) not in self.cut:
                self.tell(broker_id)

    def tell(self, broker_id: int) -> None:
        known = self.known
        self.roles[broker_id].apply(BrokerSetState(known.master_epoch, known.master, known.master_address))

    # -- invariants ---------------------------------------------------------------------------------------------

    @invariant()
    def never_two_masters(self) -> None:
        taking = [
            broker_id
            for broker_id in self.living
            if self.roles[broker_id].is_master and not self.leases[broker_id].is_over(self.now_ms / 1000)
        ]
        assert len(taking) < 2


def test_none_is_granted_while_another_master_is_kept() -> None:
    """The first broker was silent for more than its 3 s.

    It returns before the state store has the next master.
    """
    machine = LeaseMachine()
    machine.time_passes(3001)
    machine.commit_begins()
    machine.heartbeat(1, "n0")
    machine.commit_ends(is_kept=True)
    assert machine.known.master == 3
    machine.never_two_masters()


LeaseMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase
