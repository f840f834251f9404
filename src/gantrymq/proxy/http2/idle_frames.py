"""IdleFrames: how many frames that carry nothing a peer may send.

Pings, settings, streams that are opened to be given up (a rapid reset, CVE-2023-44487) cost who sends them nothing, and
who must answer them some work: so many at once are taken, and so many each second.
"""

from __future__ import annotations

_AT_ONCE = 5000
_PER_S = 500
#: By a frame of data that it is sent a peer earns so many: gRPC's own core opens the connection's window after each
#: answer by just its bytes, and pings now and then.
_EARNED = 4


class IdleFrames:
    """Of one connection; a plain count that is told the time."""

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = _AT_ONCE
        #: From then on none were given for the time that passes.
        self._since = now

    def earn(self) -> None:
        """The peer was sent some data."""
        self._left += _EARNED

    def spend(self, frames: int, now: float) -> bool:
        """Whether it may send so many."""
        self._left = min(self._left, _AT_ONCE) - frames
        if self._left < 0:
            self._left += min(int((now - self._since) * _PER_S), _AT_ONCE)
            self._since = now
        return self._left >= 0
