"""Time slices for the frames of all connections within one event-loop iteration.

Slices are measured by the clock, so that an iteration takes no longer on a slow machine. The costs in `time_quota.py`
are constants instead, because they are charged to peers.

- A connection gets SLICE_S in an iteration. The rest of its input waits for the next iteration.
- All connections together get ROUND_S. Connections with waiting frames share it equally.
- A slice has at least LEAST_SLICE_S, so that each connection can process one frame in each iteration.
- If ROUND_S is used up, a connection with a large read is not read again in this iteration. Such connections are read
  in turn. The durations of their last slices determine how many fit into ROUND_S.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

SLICE_S = 0.002
ROUND_S = 0.005
LEAST_SLICE_S = 0.00005
#: Size of a large read, bytes. uvloop reads 256 KiB at once. While the reads are full, it repeats them up to 32 times.
LARGE_READ = 64 * 1024


class Waiting(Protocol):
    """A paused connection."""

    @property
    def last_slice_s(self) -> float:
        """Duration of its last slice, s."""

    def go_on(self) -> None:
        """Processes waiting frames, or reads again."""


class ReadSlices:
    """The time slices of all connections of one server."""

    def __init__(self) -> None:
        #: Duration of all slices since the start, s.
        self.total_s = 0.0
        #: The value of `total_s` at the start of the round. A round can last several iterations, until ROUND_S is used
        #: up.
        self._began_s = 0.0
        self._is_round_due = False
        #: Paused connections with waiting frames, and paused connections without them.
        self._with_frames: list[Waiting] = []
        self._unread: deque[Waiting] = deque()
        #: Number of connections that share this round.
        self._sharing = 1

    def begin(self, now: float) -> float:
        """Starts a slice at `now`. Returns the time at which it ends, s."""
        share_s = min(SLICE_S, ROUND_S / max(self._sharing, len(self._with_frames)), self._left_s)
        return now + max(share_s, LEAST_SLICE_S)

    def ended(self, seconds: float) -> None:
        """Counts a slice of this duration."""
        self.total_s += seconds
        if self.is_used_up:
            self._need_round()

    @property
    def is_used_up(self) -> bool:
        return self._left_s < 0

    @property
    def _left_s(self) -> float:
        return self._began_s + ROUND_S - self.total_s

    def wait(self, connection: Waiting, *, has_frames: bool) -> None:
        """Adds a paused connection. Its `go_on` is called in a later iteration."""
        if has_frames:
            self._with_frames.append(connection)
        else:
            self._unread.append(connection)
        self._need_round()

    def _need_round(self) -> None:
        if not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._new_round)

    def _new_round(self) -> None:
        """Resumes all connections with waiting frames, and as many of the others as fit into ROUND_S."""
        self._is_round_due = False
        self._began_s = self.total_s
        with_frames, self._with_frames = self._with_frames, []
        self._sharing = max(1, len(with_frames))
        for connection in with_frames:
            connection.go_on()
        left_s = self._left_s
        while self._unread and left_s > 0:
            connection = self._unread.popleft()
            left_s -= connection.last_slice_s
            connection.go_on()
        if self._unread:
            self._need_round()
