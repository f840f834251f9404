"""InSync: whose copy a master waits for, and up to where all of these have its log (`AutoSwitchHAService`).

The set is the controller's: only one of it is elected. While the master has asked for another set and doesn't know yet
what became of that, both sets count: the controller may have it already, and elect one of the new.
"""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.slaves import Slave

#: What a controller looks at last, after both epochs.
_REFUSED = {ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE}


class InSync:
    """Of the master with the controller's id `own_id`, whose epoch began at `epoch_start` of the log.

    Times are seconds of a clock that only goes on.
    """

    def __init__(self, own_id: int, members: Iterable[int], members_epoch: int, epoch_start: int) -> None:
        self.members = frozenset(members) | {own_id}
        self.members_epoch = members_epoch
        self._own_id = own_id
        self._epoch_start = epoch_start
        #: What the controller was asked for, while it isn't known whether it has it.
        self._asked: frozenset[int] = frozenset()
        self._confirmed = 0
        self._others = self.members - {own_id}

    @property
    def count(self) -> int:
        """How many are in sync, this broker among them (`inSyncReplicasNums`)."""
        return max(len(self.members), len(self._asked))

    @property
    def others(self) -> frozenset[int]:
        """The slaves that the controller takes for in sync."""
        return self.members - {self._own_id}

    @property
    def is_alone(self) -> bool:
        """Nobody's copy is waited for."""
        return not self._others

    def told(self, members: Iterable[int], members_epoch: int) -> bool:
        """What the controller has; whether that is news."""
        if members_epoch <= self.members_epoch:
            return False
        self.members, self.members_epoch = frozenset(members), members_epoch
        self._set_asked(frozenset())
        return True

    def ask(self, wanted: frozenset[int]) -> None:
        """The controller is being asked for this set."""
        # What it was asked for before without an answer may still come.
        self._set_asked(self._asked | wanted)

    def refused(self, wanted: frozenset[int], code: int) -> None:
        """The controller has said no to this set, with a code.

        Only some of these say that it has the set that is known. It answers that the new set is the old one, too, when
        it has taken it before and the answer was lost; and a broker that is deposed doesn't learn which set it had.
        """
        is_same = code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED and wanted == self.members
        if is_same or code in _REFUSED:
            self._set_asked(frozenset())

    def _set_asked(self, asked: frozenset[int]) -> None:
        self._asked = asked
        self._others = (self.members | asked) - {self._own_id}

    def confirmed(self, slaves: Iterable[Slave], end: int) -> int:
        """Up to which physical offset all that count have the log, whose end is `end`; it never goes back.

        It doesn't go on while one of them isn't connected.
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
        """Whether every other replica that counts follows, and has caught up within the last `late_s` seconds.

        Only one of them can be elected, and it leaves this master when it is.
        """
        following = {slave.broker_id for slave in slaves if now - slave.caught_up_at <= late_s}
        # Without an epoch the controller hasn't named the set yet.
        return self.members_epoch > 0 and self._others <= following

    def wanted(self, in_time: Iterable[Slave]) -> frozenset[int] | None:
        """The set that there should be; None when the controller has that.

        Slaves that aren't `in_time` (`Membership`), or aren't connected, are out. A slave that has all that is
        confirmed, and of this epoch, is in.
        """
        least = max(self._confirmed, self._epoch_start)
        wanted = {self._own_id}
        for slave in in_time:
            if slave.broker_id in self.members or slave.acknowledged >= least:
                wanted.add(slave.broker_id)
        return None if wanted == self.members and not self._asked else frozenset(wanted)
