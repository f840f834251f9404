"""Limits the memory for incomplete frames of all connections of a server.

A frame has up to 16 MiB, and a peer may send only a part of it. With only a limit per connection, sixty such peers
would use 890 MB.

Rules:
1. A frame shorter than 64 KiB (SMALL) is always read.
2. A longer frame is read if it fits into the quota, three quarters of the limit. Each frame being read counts with its
   full length, and each waiting frame with its received bytes. If a frame does not fit, its connection is not read, and
   the kernel stops the peer. The last quarter is for the first read of each waiting frame.
3. When quota is free again, the shortest waiting frame continues, then the oldest, in alternation. Therefore neither a
   stream of short frames nor many long frames can block the others forever.
4. While frames wait, a frame being read that receives nothing for STALLED_S must wait again. After more than
   MOST_STALLS times, its connection is closed. If another frame needs the quota, the connections of frames that have
   received nothing for GIVEN_UP_S are closed, too, largest first.
5. While frames wait, each frame being read must arrive at LEAST_PACE (64 KiB/s) or faster, checked every PACE_S.
   Otherwise its connection is closed. A waiting frame therefore gets quota within one or two seconds, and a slow but
   steady frame completes.
6. If many frames start at once and still exceed the limit, connections are closed. Waiting frames go first, then large
   ones, then small ones. In each group, the largest goes first.

Decision record: docs/decisions/fair-scheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.limits import INCOMPLETE_FRAMES_BYTES
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

SMALL = 64 * 1024
PACE_S = 5.0
LEAST_PACE = 64 * 1024
STALLED_S = 1.2
GIVEN_UP_S = 2.0
MOST_STALLS = 3
_LOOK_S = 0.5


class Reader(Protocol):
    """A connection with an incomplete frame."""

    @property
    def address(self) -> str: ...
    def stop_reading(self) -> None: ...
    def go_on_reading(self) -> None: ...
    def abort(self) -> None: ...


class _State(IntEnum):
    """The states of a frame, in the order in which connections are closed if the limit is exceeded."""

    WAITING = 0
    READ = 1
    SMALL = 2


@dataclass(slots=True, eq=False)
class _Frame:
    reader: Reader
    number: int
    length: int
    state: _State
    #: Time when the frame began to wait or its pace was last checked, and its received bytes at that time.
    since: float
    held_then: int
    #: Time of the last received byte, or of the frame's admission.
    moved: float
    held: int = 0
    #: Number of times that the frame lost its quota because nothing arrived.
    stalls: int = 0
    is_gone: bool = False

    @property
    def counted(self) -> int:
        return self.length if self.state is _State.READ else self.held


class IncompleteFrames:
    """The incomplete frames of one server.

    Args:
        jobs: Report for the background job.
        limit: Memory limit in bytes, at least twice the longest frame.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        jobs: Jobs | None = None,
        *,
        limit: int = INCOMPLETE_FRAMES_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limit = limit
        self._limit_of_read = limit * 3 // 4
        self._clock = clock
        self._job = (jobs or Jobs()).repeating("incomplete frames", self.look)
        self._frames: dict[Reader, _Frame] = {}
        self._waiting = 0
        #: True if the oldest waiting frame is admitted next; false for the shortest.
        self._is_oldest_next = False
        #: Received bytes of all frames. In contrast, `counted` includes the full length of the frames being read.
        self.held = 0
        self.counted = 0

    def start(self) -> None:
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._frames

    def received(self, reader: Reader, number: int, length: int, held: int) -> None:
        """Records a read: `held` of the `length` bytes of frame `number` have arrived. Length 0 means no such frame."""
        frame = self._frames.get(reader)
        if frame is not None and (frame.number != number or not length):
            self._remove(frame)
            frame = None
        if not length:
            return
        if frame is None:
            state = _State.SMALL if length < SMALL else _State.READ
            now = self._clock()
            frame = self._frames[reader] = _Frame(reader, number, length, state, now, 0, now)
            self.counted += frame.counted
            if state is _State.READ and (self._waiting or self.counted > self._limit_of_read):
                self._wait(frame)
        self.held += held - frame.held
        if frame.state is _State.READ:
            frame.moved = self._clock()
        else:
            self.counted += held - frame.held
        frame.held = held
        if self.held > self._limit:
            self._close_largest()

    def forget(self, reader: Reader) -> None:
        """Removes the frame of a lost connection."""
        frame = self._frames.get(reader)
        if frame is not None:
            self._remove(frame)

    def look(self) -> float | None:
        """Checks the frames being read and admits waiting frames. While frames wait, runs every 0.5 s."""
        if not self._waiting:
            return None
        now = self._clock()
        for frame in list(self._frames.values()):
            if frame.state is not _State.READ:
                continue
            if now - frame.moved >= STALLED_S:
                self._stalled(frame, now)
            elif now - frame.since >= PACE_S:
                if frame.held - frame.held_then < LEAST_PACE * PACE_S:
                    self._close(frame, "its frame hardly arrives, and others wait")
                else:
                    frame.since, frame.held_then = now, frame.held
        self._admit(now)
        return _LOOK_S if self._waiting else None

    def _admit(self, now: float) -> None:
        waiting = [frame for frame in self._frames.values() if frame.state is _State.WAITING]
        shortest = iter(sorted(waiting, key=lambda frame: (frame.length, frame.since)))
        oldest = iter(sorted(waiting, key=lambda frame: frame.since))
        while self._waiting:
            frame = next(
                frame
                for frame in (oldest if self._is_oldest_next else shortest)
                if frame.state is _State.WAITING and not frame.is_gone
            )
            # A frame that does not fit blocks the others, because it might never fit if they took the free quota.
            if not self._free_bytes(frame, now):
                break
            self._read(frame, now)
            self._is_oldest_next = not self._is_oldest_next

    def _free_bytes(self, frame: _Frame, now: float) -> bool:
        """Closes stalled frames for `frame`, unless it stalled itself. Returns false if the quota is not enough."""
        while self.counted - frame.held + frame.length > self._limit_of_read:
            stalled = [
                other
                for other in self._frames.values()
                if other.stalls and other.state is _State.WAITING and now - other.moved >= GIVEN_UP_S
            ]
            if frame.stalls or not stalled:
                return False
            self._close(max(stalled, key=lambda other: other.held), "its frame has stalled, and others need the memory")
        return True

    def _stalled(self, frame: _Frame, now: float) -> None:
        frame.stalls += 1
        if frame.stalls > MOST_STALLS:
            self._close(frame, "its frame doesn't go on, and others wait")
            return
        self._stop(frame)
        frame.since = now

    def _wait(self, frame: _Frame) -> None:
        if not self._waiting:
            # The pace is checked only while frames wait, so the checks of all frames start here.
            for other in self._frames.values():
                other.since, other.held_then = frame.since, other.held
        self._stop(frame)
        # At the end of this loop iteration, `look` admits the frame if it is shorter than those before it and fits.
        self._job.wake()

    def _stop(self, frame: _Frame) -> None:
        self.counted -= frame.counted
        frame.state = _State.WAITING
        self.counted += frame.counted
        self._waiting += 1
        frame.reader.stop_reading()

    def _read(self, frame: _Frame, now: float) -> None:
        self._waiting -= 1
        self.counted -= frame.counted
        frame.state = _State.READ
        self.counted += frame.counted
        frame.since = frame.moved = now
        frame.held_then = frame.held
        frame.reader.go_on_reading()

    def _remove(self, frame: _Frame) -> None:
        del self._frames[frame.reader]
        frame.is_gone = True
        self.held -= frame.held
        self.counted -= frame.counted
        if frame.state is _State.WAITING:
            self._waiting -= 1
        # Small frames begin and end often. Their quota is reused at the next regular check.
        if self._waiting and frame.state is not _State.SMALL:
            self._job.wake()

    def _close_largest(self) -> None:
        # Frees more than necessary, so that the next read does not exceed the limit again.
        for frame in sorted(self._frames.values(), key=lambda frame: (frame.state, -frame.held)):
            if self.held <= self._limit * 7 // 8:
                break
            self._close(frame, f"all incomplete frames together exceed {self._limit} bytes")

    def _close(self, frame: _Frame, why: str) -> None:
        log.warning("closing the connection with %s: %s", frame.reader.address, why)
        self._remove(frame)
        frame.reader.abort()
