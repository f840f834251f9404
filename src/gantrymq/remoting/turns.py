"""Turns: whose requests are handled in a round of the event loop, so that nobody waits for everybody.

A round of the loop hands each connection that can be read its bytes, and the requests in them are handled at once. One
connection's requests go on for TURN_S at most; but with fifty connections fifty turns are one round, and whoever has a
single small request waits for all of them. The rules:

- A turn has TURN_S; once turns have taken that long in a round, each further one has CROWDED_TURN_S.
- Once they have taken ROUND_S only *cheap* connections are still served in this round: those that were served in the
  last second, and whose turns took at most CHEAP_SHARE of the time, or at most SHORT_TURN_S each. All others are put
  off, and so is whoever has sent a large frame. On a slow machine a client that sends 100 small messages a second takes
  more than CHEAP_SHARE. At most 50 connections can do so, because all together have the whole time: with short turns
  they add 50 ms to a round.
- When the reads of those that were put off have MAX_WAITING_BYTES together, nobody else but cheap connections is read
  until half of them have had their turn.
- Those that were put off, and the rest of what a turn didn't finish, are served in the next rounds in turn, for
  WAITING_S of each round. Connections of which not much is known come in turn with those that take much, so that
  neither a crowd of busy ones nor a stream of new ones keeps the other waiting. Of those that take much who took least
  comes first. What a connection took is forgiven while it waits, as otherwise: after two seconds all that come later
  come after it.
- A turn is as long as others wait for it; what a connection *took* is the processor's time, 0.5 us more a read. On a
  machine that others use too a turn of a single small request lasts 30 ms now and then, and whoever asks for little
  would be put off for seconds.

So a client that asks for little waits for one round's budget, and one request, whatever the others do. What a request
takes is known afterwards only: a crowd of connections that were cheap can do it once, and is put off from then on.

Alternatives that lost: a turn for each connection by `call_soon`, all of which come in one round; a queue that all
requests go through, which costs those who are alone 0.2 us a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.remoting.loop_watch import LoopWatch

#: So long a connection's requests go on in one turn, s; the rest of what was read waits for the next.
TURN_S = 0.005
#: The same once turns of this round have taken that already.
CROWDED_TURN_S = 0.0005
#: What all turns of a round may take, s; then only cheap connections have one. And those of it that were put off.
ROUND_S = 0.02
WAITING_S = 0.01
#: The share of the time that a cheap connection's turns take, and what they may take at once beside it, s. A client
#: that sends 50 small messages a second takes a third of that share.
CHEAP_SHARE = 0.02
CHEAP_S = 0.01
#: The longest turn of a connection that is cheap whatever its share is, s.
SHORT_TURN_S = 0.001
#: Factor by which each further turn reduces the longest turn of a connection.
TURN_DECAY = 7 / 8
#: However much a connection took, two seconds later that counts no more.
MOST_S = 0.05
#: What the reads of those that were put off may hold before no more are read, bytes: a read has 256 KiB at most.
MAX_WAITING_BYTES = 64 * 1024 * 1024
#: A connection that was not served for so long may be anybody's, s.
KNOWN_S = 1.0


class Waiting(Protocol):
    """A Connection that was put off."""

    #: Of the read whose requests wait.
    read_bytes: int

    def is_busy(self) -> bool: ...
    def forgiven_at(self) -> float: ...
    def go_on(self) -> None: ...
    def read_or_stop(self) -> None: ...


class _Busy(NamedTuple):
    """In the order of their turns."""

    forgiven_at: float
    number: int
    connection: Waiting
    size: int


class Turns:
    """Of one server, or of one client's connections. Each connection adds what its turns take to `used`."""

    def __init__(self, watch: LoopWatch | None = None, jobs: Jobs | None = None) -> None:
        self.watch = watch if watch is not None else LoopWatch()
        #: What turns have taken since the last new round, s. It is not begun anew for the sake of less than TURN_S.
        self.used = 0.0
        #: How long a turn may be that begins now.
        self.turn_s = TURN_S
        self.is_used_up = False
        self._job = (jobs or Jobs()).repeating("turns of connections", self._new_round, after_error_s=TURN_S)
        self._job.start()
        self._is_due = False
        #: Bytes of the reads that wait; so many do that only cheap connections are read.
        self._waiting_bytes = 0
        self.is_full = False
        #: All connections of the server, in the order in which they came.
        self._connections: dict[Waiting, None] = {}
        #: Those of which little is known, in the order in which they were put off, and a heap of those that take much.
        self._unknown: deque[tuple[Waiting, int]] = deque()
        self._busy: list[_Busy] = []
        self._numbers = count()
        self._is_turn_of_busy = False

    def took_much(self) -> None:
        """`used` is more than TURN_S."""
        self.turn_s = CROWDED_TURN_S
        self.is_used_up = self.used > ROUND_S
        self._need_round()

    def connected(self, connection: Waiting) -> None:
        """`connection` is to be read no more while too much waits."""
        self._connections[connection] = None

    def connection_lost(self, connection: Waiting) -> None:
        self._connections.pop(connection, None)

    def put_off(self, connection: Waiting) -> None:
        """`connection` goes on in a later round."""
        size = connection.read_bytes
        if connection.is_busy():
            heappush(self._busy, _Busy(connection.forgiven_at(), next(self._numbers), connection, size))
        else:
            self._unknown.append((connection, size))
        self._waiting_bytes += size
        if self._waiting_bytes > MAX_WAITING_BYTES and not self.is_full:
            self._fill(is_full=True)
        self._need_round()

    def _fill(self, *, is_full: bool) -> None:
        self.is_full = is_full
        for connection in list(self._connections):
            connection.read_or_stop()

    def _need_round(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._job.wake()

    def _new_round(self) -> float | None:
        if self.used > TURN_S:
            self.watch.round_ended(self.used)
        self.used = 0.0
        self.turn_s = TURN_S
        self.is_used_up = False
        for connection, size in self._in_turn():
            self._waiting_bytes -= size
            connection.go_on()
            if self.used > WAITING_S:
                break
        if self.is_full and self._waiting_bytes <= MAX_WAITING_BYTES // 2:
            self._fill(is_full=False)
        self._is_due = bool(self._unknown or self._busy or self.used > TURN_S)
        return 0.0 if self._is_due else None

    def _in_turn(self) -> Iterator[tuple[Waiting, int]]:
        """As many as wait now. A single turn may be all of a round: the next one begins with the others."""
        unknown, busy = len(self._unknown), len(self._busy)
        while unknown or busy:
            if busy and (self._is_turn_of_busy or not unknown):
                busy -= 1
                self._is_turn_of_busy = False
                _, _, connection, size = heappop(self._busy)
                yield connection, size
            else:
                unknown -= 1
                self._is_turn_of_busy = True
                yield self._unknown.popleft()
