"""Quotas of processor time for the frames of a peer that belong to no call.

Every frame has a cost. These frames belong to a call and are free: its HEADERS, DATA with its message, and the window
updates and pings that follow a response. All other frames are charged to their peer:

- pings and settings
- streams that are reset at once (CVE-2023-44487)
- DATA of a few bytes or of padding
- frames of ended streams
- oversized header blocks

A connection that exceeds its quota is closed with ENHANCE_YOUR_CALM. All connections together also have a quota. When
this common quota is used up, each connection has only `_CROWDED_US` instead of its whole burst. Otherwise the bursts of
many connections would add up.

Costs are constants, measured on the machine of docs/decisions/http2.md. Times measured at run time would charge the
load of other processes to the peer.
"""

from __future__ import annotations

#: Costs in us: any frame; HEADERS; each of its fields; each byte of a header block beyond `SMALL_BLOCK` bytes.
FRAME_US = 2.5
HEADERS_US = 12.0
FIELD_US = 0.4
BYTE_US = 0.15
SMALL_BLOCK = 2048
#: Number of fields of a call that are free.
USUAL_FIELDS = 64
#: Cost of a call that is cancelled or ends without a response message, us.
EMPTY_CALL_US = 20.0
#: Costs in us: one entry of a SETTINGS frame; a change of the window of one stream.
SETTING_US = 0.3
WINDOW_US = 0.1
#: Credit for each DATA frame that is sent to the peer, us. gRPC's core responds with window updates and pings.
EARNED_US = 10.0
#: Smallest free DATA frame, bytes. A smaller frame of the peer is charged unless it ends its stream. A smaller part of
#: a response is also charged, because the peer has opened only such a small window.
SMALL_DATA = 256

#: Burst of a connection, us, and its rate, us/s: 2 % of a core. 1,024 calls that a client cancels at once take 23 ms.
_BURST_US = 40_000.0
_US_PER_S = 20_000.0
#: Burst and rate of all connections together, us and us/s.
_SHARED_BURST_US = 100_000.0
_SHARED_US_PER_S = 100_000.0
_CROWDED_US = 2_000.0


class SharedTime:
    """The quota of all connections of one server. The caller passes the time, s."""

    __slots__ = ("_left_us", "_since")

    def __init__(self) -> None:
        self._left_us = _SHARED_BURST_US
        self._since = 0.0

    def spend(self, us: float, now: float) -> bool:
        """Charges `us` to the quota. Returns False if it is used up."""
        refilled = self._left_us + max(0.0, now - self._since) * _SHARED_US_PER_S
        # Limit the debt, so that one second without a flood clears it.
        self._left_us = max(min(refilled, _SHARED_BURST_US) - us, -_SHARED_US_PER_S)
        self._since = now
        return self._left_us >= 0


class TimeQuota:
    """The quota of one connection."""

    __slots__ = ("_left_us", "_shared", "_since", "earned_us", "spent_us")

    def __init__(self, shared: SharedTime, now: float) -> None:
        #: Costs and credits since the last `settle`, us.
        self.spent_us = self.earned_us = 0.0
        self._shared = shared
        self._left_us = _BURST_US
        self._since = now

    def settle(self, now: float) -> bool:
        """Charges the costs since the last call. Returns False if the quota is exceeded."""
        spent_us = self.spent_us
        if not spent_us:
            return True
        earned_us, self.spent_us, self.earned_us = self.earned_us, 0.0, 0.0
        refilled_us = self._left_us + earned_us + max(0.0, now - self._since) * _US_PER_S
        self._left_us = min(refilled_us, _BURST_US) - spent_us
        self._since = now
        allowed_us = _BURST_US if self._shared.spend(max(0.0, spent_us - earned_us), now) else _CROWDED_US
        return self._left_us >= _BURST_US - allowed_us
