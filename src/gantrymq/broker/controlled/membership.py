"""Membership: which slaves are in time enough for the sync-state set (`AutoSwitchHAService.maybeShrinkSyncStateSet`).

A member that has lagged behind for `haMaxTimeSlaveNotCatchup` leaves, so that sends don't wait for it. Each time that
costs senders this time, so a slave that leaves again and again must be caught up for longer each time before it comes
back. Java's slave comes back as soon as it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from gantrymq.replication.slaves import Slave

#: A slave leaves if it is late in two looks that are so far apart, s: while the master itself stood still, nothing that
#: slaves acknowledged was read.
_SECOND_LOOK_S = 0.1
#: How long a slave that was late must be caught up before it comes back, s: this, then twice as long each time.
_FIRST_PROBATION_S = 1.0
_LONGEST_PROBATION_S = 60.0
#: A member that wasn't late for so long begins with the first probation again, s.
_FORGET_S = 300.0


@dataclass(slots=True)
class _History:
    """The state of one slave that lagged behind as a member of the set. A time is inf while it does not apply."""

    late_since: float = inf
    #: It was late for long enough.
    is_leaving: bool = False
    departures: int = 0
    #: As a member, and as a slave that isn't one.
    in_time_since: float = inf
    caught_up_since: float = inf

    @property
    def probation_s(self) -> float:
        # Bounded before the power is taken.
        exponent = min(self.departures - 1, 10)
        return min(_FIRST_PROBATION_S * 2**exponent, _LONGEST_PROBATION_S) if self.departures else 0.0


class Membership:
    """The slaves of one master in one epoch. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        #: By broker id; only members get one, whose ids are the controller's.
        self._histories: dict[int, _History] = {}
        #: When the next look may find something else.
        self.look_at = inf

    def in_time(
        self, slaves: Iterable[Slave], members: Collection[int], now: float, late_s: float, *, is_short: bool
    ) -> list[Slave]:
        """The slaves that may be members.

        If the set `is_short` (it has fewer members than a send needs), probation is left out: a slave that may leave
        again is better than refused sends.
        """
        self.look_at = inf
        found = []
        for slave in slaves:
            if slave.is_learner:
                continue
            lag_s = now - slave.caught_up_at
            if slave.broker_id in members:
                is_in_time = self._stays(slave, lag_s, now, late_s)
            else:
                is_in_time = self._comes_back(slave, lag_s, now, late_s, is_short=is_short)
            if is_in_time:
                found.append(slave)
        return found

    def _stays(self, slave: Slave, lag_s: float, now: float, late_s: float) -> bool:
        history = self._histories.get(slave.broker_id)
        if lag_s < late_s:
            self._look_in(now, late_s - lag_s)
            if history is not None:
                history.late_since, history.caught_up_since, history.is_leaving = inf, inf, False
                history.in_time_since = min(history.in_time_since, now)
                if now - history.in_time_since >= _FORGET_S:
                    del self._histories[slave.broker_id]
            return True
        if history is None:
            history = self._histories[slave.broker_id] = _History()
        history.late_since, history.in_time_since = min(history.late_since, now), inf
        if now - history.late_since < _SECOND_LOOK_S:
            self._look_in(now, history.late_since + _SECOND_LOOK_S - now)
            return True
        if not history.is_leaving:
            history.is_leaving = True
            history.departures += 1
        return False

    def _comes_back(self, slave: Slave, lag_s: float, now: float, late_s: float, *, is_short: bool) -> bool:
        history = self._histories.get(slave.broker_id)
        if lag_s > late_s / 2:
            if history is not None:
                history.caught_up_since = inf
            return False
        if history is None or not history.departures:
            return True
        history.late_since, history.in_time_since, history.is_leaving = inf, inf, False
        history.caught_up_since = min(history.caught_up_since, now)
        left_s = history.caught_up_since + history.probation_s - now
        if left_s > 0.0 and not is_short:
            self._look_in(now, left_s)
            return False
        return True

    def _look_in(self, now: float, seconds: float) -> None:
        self.look_at = min(self.look_at, now + seconds)
