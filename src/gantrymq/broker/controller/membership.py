"""Selects the slaves that keep up well enough for the sync-state set (`AutoSwitchHAService.maybeShrinkSyncStateSet`).

A member that has lagged for `haMaxTimeSlaveNotCatchup` is removed, so that sends don't wait for it. Each removal delays
senders for this time. A slave therefore returns only after it has been caught up for a certain time, which grows with
each removal. Java's slave returns as soon as it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from gantrymq.replication.slaves import Slave

#: A slave is removed only if it is late in two checks that are this far apart, in seconds. While the master process
#: itself is blocked, it reads no acknowledgements, and all slaves look late.
_SECOND_LOOK_S = 0.1
#: How long a removed slave must be caught up before it returns, in seconds. The time doubles with each removal.
_FIRST_PROBATION_S = 1.0
_LONGEST_PROBATION_S = 60.0
#: If a member has kept up for this time, its earlier removals no longer count, in seconds.
_FORGET_S = 300.0


@dataclass(slots=True)
class _History:
    """The history of a slave that lagged while it was a member of the set. A time that does not apply is inf."""

    late_since: float = inf
    #: Whether the slave was late for long enough to be removed.
    is_leaving: bool = False
    departures: int = 0
    #: `in_time_since` is for members, `caught_up_since` for slaves that aren't members.
    in_time_since: float = inf
    caught_up_since: float = inf

    @property
    def probation_s(self) -> float:
        # Limits the exponent, so that the power stays small.
        exponent = min(self.departures - 1, 10)
        return min(_FIRST_PROBATION_S * 2**exponent, _LONGEST_PROBATION_S) if self.departures else 0.0


class Membership:
    """Tracks the slaves of one master in one epoch. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        #: Histories by broker id. Only slaves with an id from the controller become members and get an entry.
        self._histories: dict[int, _History] = {}
        #: The time at which the next call of `in_time` may return a different result.
        self.look_at = inf

    def in_time(
        self, slaves: Iterable[Slave], members: Collection[int], now: float, late_s: float, *, is_short: bool
    ) -> list[Slave]:
        """Returns the slaves that may be members. `late_s` is the lag after which a member is removed.

        With `is_short`, the set has fewer members than a send needs. A removed slave then returns without waiting,
        because rejected sends are worse than another removal.
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
