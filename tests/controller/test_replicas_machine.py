"""Random sequences of events for one broker set, with invariants.

Brokers join, send requests, become silent, and are removed.
"""

from __future__ import annotations

from controller_support import NAME, Brokers, clean_header, elect_header, register_header
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.replicas import Decision
from gantrymq.protocol.bodies.controller import SyncStateSet
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.controller import AlterSyncStateSetRequestHeader

ids = st.integers(-1, 5)
some_ids = st.sets(ids, max_size=4)


class BrokerSetMachine(RuleBasedStateMachine):
    """One broker set. Any decision can be lost before it is stored, as when the state store fails."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers = Brokers()
        #: The master and the in-sync set of each epoch.
        self.masters: dict[int, int | None] = {0: None}
        self.sets: dict[int, frozenset[int]] = {0: frozenset()}
        self.last: BrokerSet | None = None
        #: States that a master had in memory, now or earlier: (id, epoch, epoch of the set).
        self.known_to_masters: list[tuple[int, int, int]] = []

    def keep(self, decision: Decision, is_kept: bool) -> None:
        if decision.changed is not None and is_kept:
            # `do` is not used here, because it checks the same rules.
            self.brokers.replicas.apply(BrokerSet.decode(decision.changed.encode()))

    @rule(broker_id=ids, is_same=st.booleans(), is_kept=st.booleans())
    def apply(self, broker_id: int, is_same: bool, is_kept: bool) -> None:
        self.keep(self.brokers.apply(broker_id, None if is_same else f"other-{broker_id}:1;1"), is_kept)

    @rule(broker_id=ids, epoch=st.integers(-1, 3), offset=st.integers(0, 3), priority=st.integers(0, 2))
    def heartbeat(self, broker_id: int, epoch: int, offset: int, priority: int) -> None:
        self.brokers.lives(broker_id, epoch, offset, priority)

    @rule(broker_id=ids)
    def dies(self, broker_id: int) -> None:
        self.brokers.living.pop(broker_id, None)

    @rule(broker_id=ids, is_kept=st.booleans(), at=st.sampled_from([None, "moved:1"]))
    def register(self, broker_id: int, is_kept: bool, at: str | None) -> None:
        brokers = self.brokers
        decision = brokers.replicas.register_broker(register_header(broker_id, at), brokers.live)
        self.keep(decision, is_kept)

    @rule(broker_id=ids, designate=st.booleans(), unclean=st.booleans(), is_kept=st.booleans())
    def elect(self, broker_id: int, designate: bool, unclean: bool, is_kept: bool) -> None:
        before = self.brokers.replicas.get(NAME)
        header = elect_header(broker_id, designate=designate)
        decision = self.brokers.replicas.elect_master(header, self.brokers.live, unclean=unclean)
        changed = decision.changed
        if changed is not None and changed.master is not None:
            assert before is not None
            assert decision.code == ResponseCode.SUCCESS
            if before.had_master:
                assert unclean or changed.master in before.sync_state_set
                assert changed.master in self.brokers.living
            if before.master in self.brokers.living:
                assert designate
                assert changed.master == broker_id
        self.keep(decision, is_kept)

    @rule(members=some_ids, which=st.integers(0, 20), is_kept=st.booleans())
    def alter(self, members: set[int], which: int, is_kept: bool) -> None:
        """Changes the in-sync set as the current master does, or as a former one does with its old state."""
        if not self.known_to_masters:
            return
        master, epoch, of = self.known_to_masters[-1 - which % len(self.known_to_masters)]
        now = self.brokers.replicas.get(NAME)
        header = AlterSyncStateSetRequestHeader(broker_name=NAME, master_broker_id=master, master_epoch=epoch)
        body = SyncStateSet(sorted(members), of)
        decision = self.brokers.replicas.alter_sync_state_set(header, body, self.brokers.live)
        if decision.changed is not None:
            assert now is not None
            assert (now.master, now.master_epoch, now.sync_state_set_epoch) == (master, epoch, of)
            assert members <= self.brokers.living.keys()
        self.keep(decision, is_kept)

    @rule(cleaned=some_ids, living=st.booleans(), is_kept=st.booleans())
    def clean(self, cleaned: set[int], living: bool, is_kept: bool) -> None:
        header = clean_header(";".join(map(str, cleaned)) or None, living=living)
        before = self.brokers.replicas.get(NAME)
        decision = self.brokers.replicas.clean_broker_data(header, self.brokers.live)
        if decision.changed is not None and not living:
            assert before is not None
            assert before.master is None or before.master not in self.brokers.living or before.master not in cleaned
        self.keep(decision, is_kept)

    @invariant()
    def rules_of_a_set(self) -> None:
        now = self.brokers.replicas.any(NAME)
        if now is None:
            return
        now.check_follows(self.last)
        assert now.master is None or now.master in now.sync_state_set
        assert now.sync_state_set <= now.replicas.keys()
        assert all(1 <= broker_id < now.next_broker_id for broker_id in now.replicas)
        # No epoch has two masters, and no epoch of the set has two sets.
        assert self.masters.setdefault(now.master_epoch, now.master) == now.master
        assert self.sets.setdefault(now.sync_state_set_epoch, now.sync_state_set) == now.sync_state_set
        if self.last is not None:
            assert now.master_epoch >= self.last.master_epoch
            assert now.sync_state_set_epoch >= self.last.sync_state_set_epoch
        if now.master is not None:
            self.known_to_masters.append((now.master, now.master_epoch, now.sync_state_set_epoch))
        self.last = now


BrokerSetMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBrokerSet = BrokerSetMachine.TestCase
