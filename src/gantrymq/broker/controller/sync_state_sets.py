"""Maintains a master's sync-state set (`ReplicasManager`) and notifies the dependent parts of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.broker.append import Appender, PendingResponses
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.controller.confirmed_messages import ConfirmedMessages
from gantrymq.broker.controller.controllers import Controllers
from gantrymq.broker.controller.membership import Membership
from gantrymq.broker.replication import Replication, SyncStateSet
from gantrymq.errors import BrokerError
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Pause before a refused or failed request to the controller is repeated, in seconds.
_AGAIN_S = 0.5
#: Shortest pause between two checks of slaves that aren't in sync, in seconds.
_LEAST_PAUSE_S = 0.05
#: Time for a slave's report to arrive after its master's heartbeat, in seconds.
_REPORT_S = 1.0


class SyncStateSets:
    """Maintains the sync-state set of a master.

    `in_sync` is None on a slave. Calls `doubtful` when the controller may have newer state.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        replication: Replication,
        appender: Appender,
        pending_responses: PendingResponses,
        controllers: Controllers,
        doubtful: Callable[[], None],
    ) -> None:
        self._config = context.config
        self._replication = replication
        self._pending_responses = pending_responses
        self._controllers = controllers
        self._doubtful = doubtful
        #: The master's epoch and id.
        self._epoch = self._own_id = 0
        self.in_sync: SyncStateSet | None = None
        self._membership = Membership()
        self._showing = ConfirmedMessages(context.store, appender, replication.confirm_offset)
        self._checking = context.jobs.repeating(
            "look which slaves are in sync",
            self._check,
            context.config.check_sync_state_set_period / 1000,
            after_error_s=_AGAIN_S,
        )
        context.events.replica_acknowledged.subscribe(self._replica_acknowledged)

    def start(self) -> None:
        self._checking.start()

    async def stop(self) -> None:
        await self._checking.stop()

    def begin(self, own_id: int, epoch: int, members: Iterable[int], members_epoch: int, epoch_start: int) -> None:
        """Starts maintaining the set as the new master. The epoch starts at the physical offset `epoch_start`."""
        self._own_id, self._epoch = own_id, epoch
        self.in_sync = SyncStateSet(own_id, members, members_epoch, epoch_start)
        self._replication.set_in_sync(self.in_sync)
        self._membership = Membership()
        self._changed(self.in_sync)

    def end(self) -> None:
        """Stops maintaining the set, because the broker is no longer master."""
        self.in_sync = None
        self._replication.set_in_sync(None)
        self._showing.end()

    def state_received(self, epoch: int, members: Iterable[int], members_epoch: int) -> None:
        """Stores the sync-state set that the controller reported."""
        in_sync = self.in_sync
        if in_sync is not None and epoch == self._epoch and in_sync.update(members, members_epoch):
            self._changed(in_sync)

    def confirms_master(self, now: float) -> bool:
        """Whether no other broker can have been elected: no lease is needed (docs/decisions/controller-leases.md)."""
        in_sync, replication = self.in_sync, self._config.replication
        if in_sync is None or not (in_sync.is_alone or replication.all_ack_in_sync_state_set):
            return False
        late_s = replication.ha_send_heartbeat_interval / 1000 + _REPORT_S
        return in_sync.none_has_left(self._replication.slaves(), now, late_s)

    def _replica_acknowledged(self) -> None:
        self._showing.look()
        if self.in_sync is not None and len(self._replication.slaves()) != len(self.in_sync.members) - 1:
            self._checking.wake(_LEAST_PAUSE_S)

    def _changed(self, in_sync: SyncStateSet) -> None:
        """Notifies the dependent parts, unless the broker uses another set by now."""
        if in_sync is self.in_sync:
            self._showing.in_sync_changed(is_alone=in_sync.is_alone)
            self._pending_responses.in_sync_changed(in_sync.count)

    async def _check(self) -> float | None:
        """Requests a change of the set from the controller if members have to be added or removed. Raises GantryError.

        The next check runs when a slave may be late or may return, and at the latest after `checkSyncStateSetPeriod`.
        """
        in_sync = self.in_sync
        if in_sync is None:
            return None
        replication, now = self._config.replication, monotonic()
        self._replication.confirm_offset()
        in_time = self._membership.in_time(
            self._replication.slaves(),
            in_sync.members,
            now,
            replication.ha_max_time_slave_not_catchup / 1000,
            is_short=len(in_sync.members) < replication.min_in_sync_replicas,
        )
        wanted = in_sync.wanted(in_time)
        if wanted is None:
            period_s = self._config.check_sync_state_set_period / 1000
            return min(period_s, max(self._membership.look_at - now, _LEAST_PAUSE_S))
        in_sync.ask(wanted)
        self._changed(in_sync)
        try:
            members, members_epoch = await self._controllers.alter(
                self._own_id, self._epoch, wanted, in_sync.members_epoch
            )
        except BrokerError as e:
            log.warning("the controller doesn't take %s as in sync: %s", sorted(wanted), e)
            in_sync.refused(wanted, e.code)
            self._changed(in_sync)
            self._doubtful()
            return _AGAIN_S
        if in_sync.update(members, members_epoch):
            log.info("in sync are %s", sorted(members))
            self._changed(in_sync)
            return _LEAST_PAUSE_S
        return None
