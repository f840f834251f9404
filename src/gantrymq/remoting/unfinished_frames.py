"""UnfinishedFrames: what a server holds of frames that have begun to arrive, in all its connections together.

A frame has up to 16 MiB, and a peer may begin one and not go on: with nothing but a limit for each connection sixty of
them hold 890 MB. The rules:

- A frame shorter than 64 KiB (SMALL) is always read.
- A longer one is read when it has room: all frames that are read, the whole of each, and what is held of the others
  are no more than three quarters of the limit. Else its connection isn't read any further, and it waits; the kernel
  holds up the peer. The last quarter is for the first reads of those that wait.
- When there is room again, the shortest of those that wait goes on, and next the one that has waited for the longest,
  in turn: so neither a stream of short frames nor a crowd of long ones keeps the others waiting for ever.
- While frames wait, one that is read and of which nothing comes for STALLED_S loses its place, and waits itself for
  the next; one that does so more than MOST_STALLS times is given up, and its connection closed. After GIVEN_UP_S what
  such frames hold is given up, the most first, where one that goes on would have room without it.
- While frames wait, those that are read must arrive: at least 64 KiB/s (LEAST_PACE), looked at each PACE_S. One that
  doesn't is given up. So whoever waits gets room in a second or two, and a slow frame that goes on arrives.
- If more than the limit is held all the same, because very many begin at once, connections are closed: first of
  those that wait, then of large frames, at last of small ones; of each the largest first.

Alternatives that lost: to stop whoever holds the most once the limit is reached, when all have a part of their frames
and none can end; to share the limit out evenly, which sixty idle peers make too small for an honest message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: What a server holds of unfinished frames. Three of the longest are read at a time, twelve of a broker's longest
#: messages.
LIMIT = 64 * 1024 * 1024
SMALL = 64 * 1024
PACE_S = 5.0
LEAST_PACE = 64 * 1024
STALLED_S = 1.2
GIVEN_UP_S = 2.0
MOST_STALLS = 3
_LOOK_S = 0.5


class Reader(Protocol):
    """A Connection, of which a frame is under way."""

    @property
    def address(self) -> str: ...
    def stop_reading(self) -> None: ...
    def go_on_reading(self) -> None: ...
    def abort(self) -> None: ...


class _State(IntEnum):
    """In the order in which connections are closed when too much is held."""

    WAITING = 0
    READ = 1
    SMALL = 2


@dataclass(slots=True, eq=False)
class _Frame:
    reader: Reader
    number: int
    length: int
    state: _State
    #: When it began to wait, or its pace was last looked at, and what was held of it then.
    since: float
    held_then: int
    #: When the last of it came, or its place.
    moved: float
    held: int = 0
    #: How often it has lost its place.
    stalls: int = 0
    is_gone: bool = False

    @property
    def counted(self) -> int:
        return self.length if self.state is _State.READ else self.held


class UnfinishedFrames:
    """Of one server. `limit` is in bytes, at least twice the longest frame; `clock` tells seconds."""

    def __init__(self, jobs: Jobs | None = None, *, limit: int = LIMIT, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._limit_of_read = limit * 3 // 4
        self._clock = clock
        self._job = (jobs or Jobs()).repeating("unfinished frames", self.look)
        self._frames: dict[Reader, _Frame] = {}
        self._waiting = 0
        #: Whose turn it is: the one that has waited for the longest, or the shortest.
        self._is_oldest_next = False
        #: What is held, and what that will be when the frames that are read have arrived; bytes.
        self.held = 0
        self._counted = 0

    def start(self) -> None:
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._frames

    def received(self, reader: Reader, number: int, length: int, held: int) -> None:
        """A read has ended: `held` bytes of the frame `number`, of `length` bytes, are there. Length 0: none is."""
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
            self._counted += frame.counted
            if state is _State.READ and (self._waiting or self._counted > self._limit_of_read):
                self._wait(frame)
        self.held += held - frame.held
        if frame.state is _State.READ:
            frame.moved = self._clock()
        else:
            self._counted += held - frame.held
        frame.held = held
        if self.held > self._limit:
            self._close_largest()

    def forget(self, reader: Reader) -> None:
        """The connection is gone."""
        frame = self._frames.get(reader)
        if frame is not None:
            self._remove(frame)

    def look(self) -> float | None:
        """Lets those that wait go on as far as there is room; while some wait it runs each half second."""
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
            # One that doesn't fit holds up the others: room that they took would never become enough for it.
            if not self._make_room(frame, now):
                break
            self._read(frame, now)
            self._is_oldest_next = not self._is_oldest_next

    def _make_room(self, frame: _Frame, now: float) -> bool:
        """Gives up frames that have stalled, as far as one that goes on needs what they hold."""
        while self._counted - frame.held + frame.length > self._limit_of_read:
            stalled = [
                other
                for other in self._frames.values()
                if other.stalls and other.state is _State.WAITING and now - other.moved >= GIVEN_UP_S
            ]
            if frame.stalls or not stalled:
                return False
            self._close(max(stalled, key=lambda other: other.held), "its frame has stalled, and others need the room")
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
            # Until now nobody minded how fast they are.
            for other in self._frames.values():
                other.since, other.held_then = frame.since, other.held
        self._stop(frame)
        # At the end of this turn: there may be room, for one that is shorter than those before it.
        self._job.wake()

    def _stop(self, frame: _Frame) -> None:
        self._counted -= frame.counted
        frame.state = _State.WAITING
        self._counted += frame.counted
        self._waiting += 1
        frame.reader.stop_reading()

    def _read(self, frame: _Frame, now: float) -> None:
        self._waiting -= 1
        self._counted -= frame.counted
        frame.state = _State.READ
        self._counted += frame.counted
        frame.since = frame.moved = now
        frame.held_then = frame.held
        frame.reader.go_on_reading()

    def _remove(self, frame: _Frame) -> None:
        del self._frames[frame.reader]
        frame.is_gone = True
        self.held -= frame.held
        self._counted -= frame.counted
        if frame.state is _State.WAITING:
            self._waiting -= 1
        # What small ones leave can wait for the next look: they come and go with many reads.
        if self._waiting and frame.state is not _State.SMALL:
            self._job.wake()

    def _close_largest(self) -> None:
        # Not to the limit alone: else the next read brings us here again.
        for frame in sorted(self._frames.values(), key=lambda frame: (frame.state, -frame.held)):
            if self.held <= self._limit * 7 // 8:
                break
            self._close(frame, f"all unfinished frames together hold more than {self._limit} bytes")

    def _close(self, frame: _Frame, why: str) -> None:
        log.warning("closing the connection with %s: %s", frame.reader.address, why)
        self._remove(frame)
        frame.reader.abort()
