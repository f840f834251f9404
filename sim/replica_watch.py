"""Checks the guarantees of replication during a run, at each event.

At the end of a run, clients see a violation only if a disk was lost or a broker was cut off at that moment. So each
acknowledgement, each delivered message, each change of the controllers' state and each start of a broker is compared
with the logs at that time.
"""

from __future__ import annotations

from math import inf
from typing import Any

from gantrymq.broker.append.late_responses import Waiting
from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.controller.roles import Role
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.errors import GantryError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt
from sim.cluster import Program
from sim.plan import broker_name
from sim.replicas_plan import ASYNC_MASTER, CONTROLLED
from sim.scene import Scene

#: Time in which a deposed master must stop accepting messages, in seconds. Its lease and its requests to the controller
#: take at most 5 s.
_DEPOSED_S = 8.0


class ReplicaWatch:
    """Checks of one run. Adds its findings to the problems of the history."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._plan = scene.plan
        self._servers = servers = scene.servers
        self._programs = {servers.address_of(program): program for program in servers.brokers}
        #: The last broker object of each program. It may already follow its master before its start is complete.
        self._made_last: dict[str, Broker] = {}
        #: Revision and decoded broker set of each name, as last read from the controllers' store.
        self._known: dict[str, tuple[int, BrokerSet]] = {}
        #: Time from which on a broker process accepts messages without being master.
        self._deposed_since: dict[str, float] = {}
        #: Master id by broker name and epoch.
        self._masters: dict[tuple[str, int], int] = {}
        #: The last epoch of each broker process.
        self._epochs: dict[str, int] = {}
        if self._plan.mode:
            servers.made, servers.started = self._made, self._started
            servers.etcd.watchers.append(self._changes)
            scene.has_read = self._has_read

    # -- brokers ------------------------------------------------------------------------------------------------

    def _made(self, program: Program, broker: Broker) -> None:
        """Hooks into the broker: checks each response to a producer and each append."""
        self._made_last[program.name] = broker
        waits = next(part for part in broker.features.all if isinstance(part, PendingResponses))
        wait, give, append, append_batch = waits._wait, waits._give, broker.store.append, broker.store.append_batch
        ends: dict[Waiting, int] = {}

        def noted_wait(waiting: Waiting, end: int, within_ms: int) -> None:
            ends[waiting] = end
            wait(waiting, end, within_ms)

        def noted_give(waiting: Waiting, error: Exception | None = None) -> None:
            end = ends.pop(waiting)
            if error is None and waiting.code == ResponseCode.SUCCESS:
                self._acknowledges(program, end)
            give(waiting, error)

        def noted_append(*args: Any) -> Any:
            result = append(*args)
            self._appended(program, broker)
            return result

        def noted_append_batch(*args: Any) -> Any:
            result = append_batch(*args)
            self._appended(program, broker)
            return result

        waits._wait, waits._give = noted_wait, noted_give  # type: ignore[method-assign]
        broker.store.append, broker.store.append_batch = noted_append, noted_append_batch  # type: ignore[assignment]
        if (plain := broker.features.sending.plain) is not None:
            # Native code stores these messages without a call of `append`.
            append_sends = plain._append

            def noted_append_sends(*args: Any) -> Any:
                sent = append_sends(*args)
                if sent.number:
                    self._appended(program, broker)
                return sent

            plain._append = noted_append_sends  # type: ignore[assignment]

    def _acknowledges(self, program: Program, end: int) -> None:
        """Checks that as many brokers have an acknowledged message as the mode promises."""
        plan, name = self._plan, broker_name(program.name)
        if plan.mode == ASYNC_MASTER:
            return
        have = {one.name for one in self._servers.replicas()[name] if self._end(one) >= end}
        if len(have | self._scene.lost_disks) < plan.in_sync:
            self._tell(f"{program.name} acknowledges its log up to {end}, which only {sorted(have)} have")
        if plan.mode == CONTROLLED:
            self._look_at_members(name, end, f"{program.name} acknowledges its log up to {end}")

    def _end(self, program: Program, *, is_lasting: bool = True) -> int:
        """Returns the end of a broker's log; with SYNC_FLUSH, of its flushed part."""
        last = self._made_last[program.name]
        stores = last.store, self._servers.running.get(program.name, last).store
        if is_lasting and self._plan.is_synced:
            return max(store.flushed_offset for store in stores)
        return max(store.max_physical_offset for store in stores)

    def _appended(self, program: Program, broker: Broker) -> None:
        """Checks that a broker stores no messages after it was notified of another master."""
        roles = broker.replicas_manager._roles if broker.replicas_manager is not None else None
        if roles is not None and roles.role.master_id is not None and not roles.is_master:
            self._tell(f"{program.name} stores a message, and knows that {roles.role.master_address} is master")

    def _started(self, program: Program, broker: Broker) -> None:
        """Checks that a restarted broker still has the epochs of its log."""
        before = self._servers.running.get(program.name)
        if before is None or before.replicas_manager is None or program.name in self._scene.lost_disks:
            return
        assert broker.replicas_manager is not None
        begin, end = broker.store.min_physical_offset, broker.store.max_physical_offset
        known = broker.replicas_manager._epochs.epochs.all()
        lost = [epoch for epoch in before.replicas_manager._epochs.epochs.all() if begin <= epoch.start_offset < end]
        if not set(lost) <= set(known):
            self._tell(f"{program.name} has had the epochs {lost} up to {end}, and after its start has {known}")

    # -- controllers --------------------------------------------------------------------------------------------

    def set(self, name: str) -> BrokerSet | None:
        """Returns the broker set of a name in the controllers' store."""
        kept = self._servers.etcd.sets().get(name)
        if kept is None:
            return None
        value, revision = kept
        if (known := self._known.get(name)) is None or known[0] != revision:
            known = self._known[name] = revision, BrokerSet.decode(value)
        return known[1]

    def _changes(self, name: str, before: bytes, after: bytes) -> None:
        """Checks that a new master was in sync, and that epochs increase."""
        old, new = BrokerSet.decode(before) if before else None, BrokerSet.decode(after)
        try:
            new.check_follows(old)
        except GantryError as e:
            self._tell(f"the store takes what can't follow: {e}")
        if old is None or not old.had_master or new.master in (None, old.master):
            return
        if new.master not in old.sync_state_set:
            self._tell(f"{new.master} is made master of {name}, and in sync were {sorted(old.sync_state_set)}")

    def look(self, program: Program, broker: Broker) -> None:
        """Checks the role of a broker against those of all others.

        Each epoch must have one master for all brokers. A deposed master must soon stop accepting messages.
        """
        roles = broker.replicas_manager._roles if broker.replicas_manager is not None else None
        kept, role = self.set(broker.config.broker_name), roles.role if roles is not None else Role()
        if role.master_id is None or kept is None:
            return
        assert program.host.process is not None
        name, life, now = broker.config.broker_name, program.host.process.name, self._scene.now()
        if role.epoch < self._epochs.get(life, 0):
            self._tell(f"{life} believes in epoch {role.epoch} of {name}, and knew of epoch {self._epochs[life]}")
        self._epochs[life] = role.epoch
        if role.epoch > kept.master_epoch and not self._scene.has_gone_back:
            self._tell(f"{life} believes in epoch {role.epoch} of {name}, which is in epoch {kept.master_epoch}")
        master = self._masters.setdefault((name, role.epoch), role.master_id)
        if master != role.master_id:
            self._tell(f"epoch {role.epoch} of {name} has the masters {master} and {role.master_id}")
        takes = broker.config.broker_role is not BrokerRole.SLAVE and broker.appender.refusal is None
        if not takes or not self._has_successor(kept, role):
            self._deposed_since.pop(life, None)
        elif now > self._deposed_since.setdefault(life, now) + _DEPOSED_S:
            self._tell(f"{life} takes messages, and is not the master of {name} any more")
            self._deposed_since[life] = inf

    def _has_successor(self, kept: BrokerSet, role: Role) -> bool:
        """Returns true if another broker is master and has been notified.

        Until then, the old master may accept messages without a lease: all in-sync slaves confirm them, and only one
        of these slaves can become master.
        """
        if kept.master in (None, role.master_id) or kept.master_epoch <= role.epoch:
            return False
        successor = self._servers.running.get(self._programs[kept.address_of(kept.master) or ""].name)
        replicas_manager = successor.replicas_manager if successor is not None else None
        roles = replicas_manager._roles if replicas_manager is not None else None
        return roles is not None and roles.role.epoch >= kept.master_epoch

    # -- clients ------------------------------------------------------------------------------------------------

    def _has_read(self, message: MessageExt) -> str:
        """Checks in controller mode that a delivered message is in the logs of all possible next masters.

        Returns the name of the only one if it does not have the message on its disk yet, else "".
        """
        if self._plan.mode != CONTROLLED:
            return ""
        name, place = message.broker_name, message.commit_log_offset
        self._look_at_members(name, place + 1, f"the message at {place} was delivered", is_lasting=False)
        kept = self.set(name)
        if kept is None or len(kept.sync_state_set) > 1:
            return ""
        (member,) = kept.sync_state_set
        program = self._programs[kept.address_of(member) or ""]
        return program.name if self._end(program) <= place else ""

    def _look_at_members(self, name: str, end: int, what: str, *, is_lasting: bool = True) -> None:
        """Checks that all brokers in the in-sync set of the controllers have the log up to `end`."""
        kept = self.set(name)
        if kept is None or (self._scene.has_gone_back and kept.master_epoch < max(self._epochs.values(), default=0)):
            # The controllers' state is an old copy.
            return
        for member in sorted(kept.sync_state_set):
            program = self._programs[kept.address_of(member) or ""]
            if program.name not in self._scene.lost_disks and (own := self._end(program, is_lasting=is_lasting)) < end:
                self._tell(f"{what}; in sync is {program.name}, whose log ends at {own}")

    def _tell(self, problem: str) -> None:
        self._scene.history.problems.append(f"at {self._scene.now():.3f} s {problem}")
