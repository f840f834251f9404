"""KeepingInSync: the sync-state set of a master: who comes in and goes out, and who hears of it (`ReplicasManager`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.background.jobs import Jobs
from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.controlled.controllers import Controllers
from gantrymq.broker.controlled.in_sync import InSync
from gantrymq.broker.controlled.membership import Membership
from gantrymq.broker.controlled.showing import Showing
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.errors import BrokerError
from gantrymq.logs import peer_log
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: What the controller refused, or couldn't be asked, is tried again after this time, s.
_AGAIN_S = 0.5
#: Slaves that aren't in sync are looked at no more often, s.
_LEAST_PAUSE_S = 0.05
#: Time for a slave's report to arrive after its master's heartbeat, s.
_REPORT_S = 1.0


class KeepingInSync:
    """Of one broker; no set while that is no master. `doubtful` is called when the controller may know better."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        replicating: Replicating,
        appender: Appender,
        flush_waits: FlushWaits,
        controllers: Controllers,
        jobs: Jobs,
        doubtful: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._replicating = replicating
        self._flush_waits = flush_waits
        self._controllers = controllers
        self._doubtful = doubtful
        #: Up to where all in sync have the log, by what this broker knew as a master, or its master said.
        self._confirmed = 0
        #: The master's epoch and id.
        self._epoch = self._own_id = 0
        self.in_sync: InSync | None = None
        self._membership = Membership()
        self._showing = Showing(store, appender, self.confirm_offset)
        self._checking = jobs.repeating(
            "look which slaves are in sync",
            self._check,
            config.check_sync_state_set_period / 1000,
            after_error_s=_AGAIN_S,
        )

    def start(self) -> None:
        self._checking.start()

    async def stop(self) -> None:
        await self._checking.stop()

    def begin(self, own_id: int, epoch: int, members: Iterable[int], members_epoch: int, epoch_start: int) -> None:
        """The broker is master of an epoch that begins at `epoch_start` of its log."""
        self._own_id, self._epoch = own_id, epoch
        self.in_sync = InSync(own_id, members, members_epoch, epoch_start)
        self._membership = Membership()
        self._changed(self.in_sync)

    def end(self) -> None:
        """It is no master any more."""
        self.in_sync = None
        self._showing.end()

    def told(self, epoch: int, members: Iterable[int], members_epoch: int) -> None:
        """What the controller has."""
        in_sync = self.in_sync
        if in_sync is not None and epoch == self._epoch and in_sync.told(members, members_epoch):
            self._changed(in_sync)

    def confirm_offset(self) -> int:
        """Up to where all in sync have the log; at a slave what its master said last."""
        if self.in_sync is None:
            confirmed = self._replicating.told_confirm_offset
        else:
            confirmed = self.in_sync.confirmed(self._replicating.slaves(), self._store.max_physical_offset)
        self._confirmed = max(self._confirmed, confirmed)
        return self._confirmed

    def confirms_master(self, now: float) -> bool:
        """Whether no other broker can have been elected, so that this master needs no lease.

        Decision record: docs/decisions/controller-leases.md.
        """
        in_sync, replication = self.in_sync, self._config.replication
        if in_sync is None or not (in_sync.is_alone or replication.all_ack_in_sync_state_set):
            return False
        late_s = replication.ha_send_heartbeat_interval / 1000 + _REPORT_S
        return in_sync.none_has_left(self._replicating.slaves(), now, late_s)

    def acknowledged(self) -> None:
        """A slave has more of the log, has come or has gone."""
        self._flush_waits.acknowledged()
        self._showing.look()
        if self.in_sync is not None and len(self._replicating.slaves()) != len(self.in_sync.members) - 1:
            self._checking.wake(_LEAST_PAUSE_S)

    def _changed(self, in_sync: InSync) -> None:
        """Others are waited for now, unless the broker has another set by now."""
        if in_sync is self.in_sync:
            self._showing.in_sync_changed(is_alone=in_sync.is_alone)
            self._flush_waits.in_sync_changed(in_sync.count)

    async def _check(self) -> float | None:
        """Has the controller's set changed when it isn't as it should be. Raises GantryError.

        The next look comes when a slave may be late, or may come back, and after checkSyncStateSetPeriod at the latest.
        """
        in_sync = self.in_sync
        if in_sync is None:
            return None
        replication, now = self._config.replication, monotonic()
        self.confirm_offset()
        in_time = self._membership.in_time(
            self._replicating.slaves(),
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
        if in_sync.told(members, members_epoch):
            log.info("in sync are %s", sorted(members))
            self._changed(in_sync)
            return _LEAST_PAUSE_S
        return None
