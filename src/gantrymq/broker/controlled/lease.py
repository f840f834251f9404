"""Lease: until when a master may take messages without a word from its controller.

The controller takes a broker for dead when no heartbeat has come for the time that the last one named. A master that
counts from when it *sent* a heartbeat that was answered stops before. Only controllers of ours grant a lease.
"""

from __future__ import annotations

from math import inf

#: So much of it counts: two clocks don't run equally fast.
_SAFE_PART = 0.9


class Lease:
    """Times are seconds of a clock that only goes on."""

    def __init__(self) -> None:
        #: inf: nobody grants leases.
        self.until = inf

    def answered(self, sent_at: float, lease_s: float | None) -> None:
        """A heartbeat was answered; None: by a controller without leases, 0: by one that grants none now."""
        if lease_s is None:
            self.until = inf
        else:
            until = sent_at + lease_s * _SAFE_PART
            self.until = until if self.until == inf else max(self.until, until)

    def is_over(self, now: float) -> bool:
        return now >= self.until
