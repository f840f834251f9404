"""TimeQuota: the processor time that a peer's frames may cost beyond its calls.

Every frame has a cost. A call pays for its own frames: HEADERS that begin it, DATA that carries its message, and the
window updates and pings that follow a response. All other frames are charged to their peer: pings, settings, streams
that are reset at once (CVE-2023-44487), DATA of a few bytes or of padding, frames of streams that have ended, oversized
header blocks. A connection that exceeds its quota is closed with ENHANCE_YOUR_CALM.

All connections together have a quota, too. When it is used up, each of them has only `_CROWDED_US` instead of its whole
burst, and a quarter of a slice, so that many connections cannot add up their bursts.

Costs are constants, measured on the machine of docs/decisions/http2.md. A measured time would depend on what else the
machine does, and would charge an innocent peer for it.
"""

from __future__ import annotations

#: Any frame; HEADERS and each of its fields; each byte of a header block beyond `SMALL_BLOCK`, us.
FRAME_US = 2.5
HEADERS_US = 12.0
FIELD_US = 0.4
BYTE_US = 0.15
SMALL_BLOCK = 2048
#: A field beyond so many is charged.
USUAL_FIELDS = 64
#: A call that is cancelled, or ends without a response message, us.
EMPTY_CALL_US = 20.0
#: One entry of a SETTINGS frame; to change the window of one stream, us.
SETTING_US = 0.3
WINDOW_US = 0.1
#: Each DATA frame that the peer is sent pays for so much: gRPC's core follows it by window updates and pings.
EARNED_US = 10.0
#: DATA of fewer bytes is charged, unless it ends its stream. So is a part of a response for which the peer opens so
#: small a window.
SMALL_DATA = 256

#: At once, and per second of time: 2 % of a core. 1,024 calls cancelled at once take 23 ms.
_BURST_US = 40_000.0
_US_PER_S = 20_000.0
#: The same for all connections together.
_SHARED_BURST_US = 100_000.0
_SHARED_US_PER_S = 100_000.0
_CROWDED_US = 2_000.0
#: After frames of so much cost the rest of a read waits for the next iteration of the event loop, us.
_SLICE_US = 2_000.0
_CROWDED_SLICE_US = 500.0
#: The slices of all connections that wait for one, together and each: 400 connections with a thousand calls each would
#: otherwise take seconds for one iteration. A call costs about four times as much as its frames.
_ROUND_US = 5_000.0
_LEAST_SLICE_US = 50.0


class SharedTime:
    """The quota of all connections of one server; a plain count that gets the time."""

    __slots__ = ("_left_us", "_most_slice_us", "_since", "waiting")

    def __init__(self) -> None:
        #: How many connections wait for their next slice.
        self.waiting = 0
        self._most_slice_us = _SLICE_US
        self._left_us = _SHARED_BURST_US
        self._since = 0.0

    @property
    def slice_us(self) -> float:
        """The slice of a connection."""
        if not self.waiting:
            return self._most_slice_us
        return max(min(self._most_slice_us, _ROUND_US / self.waiting), _LEAST_SLICE_US)

    def spend(self, us: float, now: float) -> bool:
        """Whether anything is left."""
        refilled = self._left_us + max(0.0, now - self._since) * _SHARED_US_PER_S
        # A debt is bounded, too: a second without floods clears it.
        self._left_us = max(min(refilled, _SHARED_BURST_US) - us, -_SHARED_US_PER_S)
        self._since = now
        has_left = self._left_us >= 0
        self._most_slice_us = _SLICE_US if has_left else _CROWDED_SLICE_US
        return has_left


class TimeQuota:
    """The quota of one connection, and the slice of time that it may take at once."""

    __slots__ = ("_left_us", "_shared", "_since", "_slice_end_us", "earned_us", "slice_us", "spent_us")

    def __init__(self, shared: SharedTime, now: float) -> None:
        #: What to charge to the peer, and what its calls pay, since `settle`.
        self.spent_us = self.earned_us = 0.0
        #: The cost of all frames since the slice began.
        self.slice_us = 0.0
        self._slice_end_us = 0.0
        self._shared = shared
        self._left_us = _BURST_US
        self._since = now

    def charge(self, us: float) -> None:
        """Adds a frame that belongs to no call."""
        self.spent_us += us
        self.slice_us += us

    def begin_slice(self) -> float:
        """Returns the cost at which the slice ends."""
        self.slice_us = 0.0
        self._slice_end_us = self._shared.slice_us
        return self._slice_end_us

    @property
    def is_slice_over(self) -> bool:
        return self.slice_us > self._slice_end_us

    def wait(self) -> None:
        """The connection waits for its next slice, until `go_on`."""
        self._shared.waiting += 1

    def go_on(self) -> None:
        self._shared.waiting -= 1

    def settle(self, now: float) -> bool:
        """False if the quota is exceeded."""
        spent_us = self.spent_us
        if not spent_us:
            return True
        earned_us, self.spent_us, self.earned_us = self.earned_us, 0.0, 0.0
        refilled_us = self._left_us + earned_us + max(0.0, now - self._since) * _US_PER_S
        self._left_us = min(refilled_us, _BURST_US) - spent_us
        self._since = now
        allowed_us = _BURST_US if self._shared.spend(max(0.0, spent_us - earned_us), now) else _CROWDED_US
        return self._left_us >= _BURST_US - allowed_us
