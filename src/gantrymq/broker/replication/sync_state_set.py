"""The sync-state set of a master, and the confirm offset that follows from it (`AutoSwitchHAService`).

The controller decides on the set and elects masters only from it. While a request to change the set is unanswered, both
the old and the requested members count. The controller may already use the new set and elect one of its members.
"""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.slaves import Slave

#: A controller returns these codes only after it has accepted the master epoch and the epoch of the set. They prove
#: that the controller and this master have the same set.
_REFUSED = {ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE}


class SyncStateSet:
    """The sync-state set of one master and the confirm offset of its log.

    `own_id` is the controller's id of the master. Its epoch starts at the physical offset `epoch_start`. Times are
    seconds of the monotonic clock.
    """

    def __init__(self, own_id: int, members: Iterable[int], members_epoch: int, epoch_start: int) -> None:
        self.members = frozenset(members) | {own_id}
        self.members_epoch = members_epoch
        self._own_id = own_id
        self._epoch_start = epoch_start
        #: Members of requests to the controller whose outcome is unknown.
        self._asked: frozenset[int] = frozenset()
        self._confirmed = 0
        self._others = self.members - {own_id}

    @property
    def count(self) -> int:
        """Number of in-sync brokers, this one included (`inSyncReplicasNums`)."""
        return max(len(self.members), len(self._asked))

    @property
    def others(self) -> frozenset[int]:
        """The slaves that the controller counts as in sync."""
        return self.members - {self._own_id}

    @property
    def is_alone(self) -> bool:
        """Whether this master is the only member, so that no acknowledgement of a slave is needed."""
        return not self._others

    def update(self, members: Iterable[int], members_epoch: int) -> bool:
        """Stores the controller's set. Returns whether it is newer than the known one."""
        if members_epoch <= self.members_epoch:
            return False
        self.members, self.members_epoch = frozenset(members), members_epoch
        self._set_asked(frozenset())
        return True

    def ask(self, wanted: frozenset[int]) -> None:
        """Records a request to the controller to change the set to `wanted`."""
        # An earlier request without a response may still take effect.
        self._set_asked(self._asked | wanted)

    def refused(self, wanted: frozenset[int], code: int) -> None:
        """Handles the controller's refusal of a requested set.

        Only some codes prove that the controller still has the known set. `CONTROLLER_ALTER_SYNC_STATE_SET_FAILED` can
        also mean that an earlier request was applied and its response was lost. The codes for a deposed master do not
        reveal the set.
        """
        is_same = code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED and wanted == self.members
        if is_same or code in _REFUSED:
            self._set_asked(frozenset())

    def _set_asked(self, asked: frozenset[int]) -> None:
        self._asked = asked
        self._others = (self.members | asked) - {self._own_id}

    def confirmed(self, slaves: Iterable[Slave], end: int) -> int:
        """Returns the confirm offset: the physical offset up to which all counted members have the log.

        `end` is the end of the master's log. The result never decreases. It does not advance while a member is
        disconnected.
        """
        offset, missing = end, len(self._others)
        for slave in slaves:
            if slave.broker_id in self._others and not slave.is_learner:
                missing -= 1
                offset = min(offset, slave.acknowledged)
        if not missing and offset > self._confirmed:
            self._confirmed = offset
        return self._confirmed

    def none_has_left(self, slaves: Iterable[Slave], now: float, late_s: float) -> bool:
        """Returns whether each other counted member follows this master and caught up in the last `late_s` seconds.

        Only these members can be elected, and an elected slave disconnects from this master.
        """
        following = {slave.broker_id for slave in slaves if now - slave.caught_up_at <= late_s}
        # With epoch 0, the controller hasn't reported the set yet.
        return self.members_epoch > 0 and self._others <= following

    def wanted(self, in_time: Iterable[Slave]) -> frozenset[int] | None:
        """Returns the set to request from the controller; None if the controller already has it.

        `in_time` are the slaves that `Membership` admits; all other slaves are left out. A new member must have the log
        up to the confirm offset and up to the start of this epoch.
        """
        least = max(self._confirmed, self._epoch_start)
        wanted = {self._own_id}
        for slave in in_time:
            if slave.broker_id in self.members or slave.acknowledged >= least:
                wanted.add(slave.broker_id)
        return None if wanted == self.members and not self._asked else frozenset(wanted)
