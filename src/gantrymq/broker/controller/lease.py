"""`Lease` and `Fence` determine how long a master accepts messages.

Each heartbeat contains a timeout. If no other heartbeat arrives within it, the controller considers the broker dead. A
master counts this time from the moment when it *sent* the last answered heartbeat, so the master stops earlier. Java's
controllers do not grant leases.

A slave that switches to a master with a newer epoch reports the epoch to its former master. The report can be forged,
so it does not depose that master. The master rejects messages and queries its controllers until one of them confirms
its role (`RunningFlags.makeFenced`).
"""

from __future__ import annotations

from math import inf

#: A master uses only this share of a lease, because two clocks do not run at exactly the same speed.
_SAFE_PART = 0.9
#: After a controller has confirmed the master, reports have no effect for this time, in seconds. Otherwise forged
#: reports could block the master permanently.
_PAUSE_S = 1.0


class Lease:
    """The lease of a master. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        #: When the lease ends; inf if the controllers do not grant leases.
        self.until = inf

    def answered(self, sent_at: float, lease_s: float | None) -> None:
        """Updates the lease after an answered heartbeat. `lease_s` is 0 if none was granted, None if Java answered."""
        if lease_s is None:
            self.until = inf
        else:
            until = sent_at + lease_s * _SAFE_PART
            self.until = until if self.until == inf else max(self.until, until)

    def is_over(self, now: float) -> bool:
        """Returns whether the lease has ended."""
        return now >= self.until


class Fence:
    """Blocks a master after a slave has reported a newer epoch. Times are seconds of the monotonic clock.

    state     `closes_at`    next state
    open      inf             `newer_epoch`: closing, or closed at once
    closing   in the future   closed, as time passes
    closed    in the past     `is_master`: open, or closing if a slave has left since the controller was queried
    """

    def __init__(self) -> None:
        #: The newest epoch that a slave has reported.
        self.epoch = 0
        #: When the fence closes; inf if no slave has reported another master.
        self.closes_at = inf
        self._left_at = self._open_until = -inf

    def newer_epoch(self, epoch: int, now: float) -> None:
        """Records that a slave has left for a master of this epoch."""
        self.epoch = max(self.epoch, epoch)
        self._left_at = now
        if self.closes_at == inf:
            self.closes_at = max(now, self._open_until)

    def is_closed(self, now: float) -> bool:
        """Whether the master must reject messages."""
        return now >= self.closes_at

    def is_master(self, asked_at: float, now: float) -> None:
        """Opens the fence: a controller has confirmed this broker as master, in response to a query at `asked_at`."""
        if asked_at >= self.closes_at:
            self._open_until = now + _PAUSE_S
            is_disproved = asked_at >= self._left_at
            self.closes_at = inf if is_disproved else self._open_until
            self.epoch = 0 if is_disproved else self.epoch
