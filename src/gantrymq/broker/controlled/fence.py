"""Fence: a master takes no messages while it is doubtful whether it still leads (`RunningFlags.makeFenced`).

A slave that follows a master of a newer epoch says so when it leaves. Slaves aren't authenticated, so this deposes
nobody: the master takes nothing, and queries its controllers, until one of them says that it is master.
"""

from __future__ import annotations

from math import inf

#: After a controller has disproved a slave, the next one has no effect for so long, s: forged ones would else stop the
#: master for good.
_PAUSE_S = 1.0


class Fence:
    """Times are seconds of a clock that only goes on.

    state     `closes_at`    next state
    open      inf             `newer_epoch`: closing, or closed at once
    closing   in the future   closed, as time passes
    closed    in the past     `is_master`: open, or closing if a slave has left since the controller was asked
    """

    def __init__(self) -> None:
        #: The newest epoch that a slave has named.
        self.epoch = 0
        #: inf: nothing says that another master leads.
        self.closes_at = inf
        self._left_at = self._open_until = -inf

    def newer_epoch(self, epoch: int, now: float) -> None:
        """A slave has left for a master of this epoch."""
        self.epoch = max(self.epoch, epoch)
        self._left_at = now
        if self.closes_at == inf:
            self.closes_at = max(now, self._open_until)

    def is_closed(self, now: float) -> bool:
        """Whether no message is to be taken."""
        return now >= self.closes_at

    def is_master(self, asked_at: float, now: float) -> None:
        """A controller, asked at that time, says that this broker is master."""
        if asked_at >= self.closes_at:
            self._open_until = now + _PAUSE_S
            is_disproved = asked_at >= self._left_at
            self.closes_at = inf if is_disproved else self._open_until
            self.epoch = 0 if is_disproved else self.epoch
