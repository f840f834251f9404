"""Fair scheduling of connections within one event-loop iteration.

In each iteration, the loop passes input to every readable connection, which handles the requests at once. Without a
limit, a client with one small request waits for all other connections that are readable in the same iteration.

Terms:
- A *time slice* (turn) is the longest time for which one connection is served before the next one.
- A *round* is one loop iteration.
- A *cheap* connection was served in the last second (KNOWN_S). Its slices took at most CHEAP_SHARE of the time, or at
  most SHORT_SLICE_S each. On a slow machine, a client with 100 small messages per second exceeds CHEAP_SHARE. At most
  50 connections can do so, because 50 shares are the whole time. With short slices, they add 50 ms to a round.

Rules:
1. A time slice is SLICE_S. After the slices of a round add up to that value, each further slice is CROWDED_SLICE_S.
2. After ROUND_S, only cheap connections are served in this round. All others, and connections that have sent a large
   frame, are deferred to later rounds.
3. If deferred input exceeds WAITING_READS_BYTES, only cheap connections are read until half of it has been handled.
4. Deferred connections get WAITING_S of each round. The rest of a read that exceeded its slice is also served in this
   time. Connections with little recorded use alternate with busy connections, so that neither group starves the other.
   Among the busy connections, the connection with the least CPU time comes first. Used CPU time expires, also for
   waiting connections. After 2 s, a waiting connection comes before all newly deferred connections.
5. A slice ends by wall time, because other connections wait that long. Usage is measured in CPU time. On a shared
   machine, a slice with one small request sometimes takes 30 ms of wall time. If wall time counted, a cheap client
   would be deferred for seconds.
6. A reading of the CPU clock takes as long as a tenth of a small request, so it is read once in CPU_CLOCK_S at most.
   The use of a slice of up to SHORT_SLICE_S is its wall time. A longer slice can include the CPU time of other work
   since the last reading.

A client with few requests thus waits for one round and one request at most, regardless of the other clients. The cost
of a request is only known afterwards. Many connections that were cheap until then can together exceed the limit once.

Decision record: docs/decisions/fair-scheduling.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.limits import WAITING_READS_BYTES
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.system.clock import thread_time

#: Longest time slice of a connection, in seconds. The rest of the read waits for the next slice.
SLICE_S = 0.005
#: Longest time slice after the slices of this round reached SLICE_S, in seconds.
CROWDED_SLICE_S = 0.0005
#: Time for all slices of a round, after which only cheap connections are served. WAITING_S: the time of a round for
#: deferred connections. Both in seconds.
ROUND_S = 0.02
WAITING_S = 0.01
#: Share of the time that a cheap connection may use, and a burst that it may use in addition, in seconds. A client with
#: 50 small messages per second uses a third of this share.
CHEAP_SHARE = 0.02
CHEAP_S = 0.01
#: If the recorded longest slice of a connection is at most this, it is cheap, regardless of its share. In seconds.
SHORT_SLICE_S = 0.001
#: Least time between two readings of the CPU clock, in seconds.
CPU_CLOCK_S = 0.001
#: Each further slice multiplies the recorded longest slice of a connection by this factor.
SLICE_DECAY = 7 / 8
#: Upper limit of the recorded CPU time, in seconds. All recorded use thus expires after about 2 s without use.
MOST_S = 0.05
#: A connection that was not served for this time is not cheap, because its behaviour is unknown. In seconds.
KNOWN_S = 1.0


class Waiting(Protocol):
    """A deferred connection."""

    #: Size of the read whose requests wait, in bytes.
    read_bytes: int

    def is_busy(self) -> bool: ...
    def forgiven_at(self) -> float: ...
    def go_on(self) -> None: ...
    def read_or_stop(self) -> None: ...


class _Busy(NamedTuple):
    """A busy deferred connection. Sorts in the order of service."""

    forgiven_at: float
    number: int
    connection: Waiting
    size: int


class TimeSlices:
    """Schedules the connections of one server or one client. Each connection adds the time of its slices to `used`."""

    def __init__(self, watch: LoopWatch | None = None, jobs: Jobs | None = None) -> None:
        self.watch = watch if watch is not None else LoopWatch()
        #: Time of all slices in this round, in seconds. It is not reset after a round with less than SLICE_S.
        self.used = 0.0
        #: Length of a slice that starts now, in seconds.
        self.slice_s = SLICE_S
        self.is_used_up = False
        #: The last reading of this thread's CPU clock, and when the next slice must read it again. In seconds.
        self._cpu_began = 0.0
        self.cpu_clock_until = -inf
        self._job = (jobs or Jobs()).repeating("time slices of connections", self.new_round, after_error_s=SLICE_S)
        self._job.start()
        self._is_due = False
        #: Bytes of deferred input. `is_full` is set if they exceed the limit; only cheap connections are read then.
        self._waiting_bytes = 0
        self.is_full = False
        #: All connections of the server, in the order of their arrival.
        self.connections: dict[Waiting, None] = {}
        #: Deferred connections with little recorded use, in order, and a heap of the busy ones.
        self._unknown: deque[tuple[Waiting, int]] = deque()
        self._busy: list[_Busy] = []
        self._numbers = count()
        self._is_turn_of_busy = False

    def used_much(self) -> None:
        """Updates the schedule after `used` exceeded SLICE_S."""
        self.slice_s = CROWDED_SLICE_S
        self.is_used_up = self.used > ROUND_S
        self._need_round()

    def read_cpu_clock(self, now: float) -> None:
        """Reads the CPU clock at the start of a slice. The reading also serves slices that start soon after it."""
        self._cpu_began = thread_time()
        self.cpu_clock_until = now + CPU_CLOCK_S

    def cpu_time(self, took_s: float) -> float:
        """Returns the CPU time in seconds of a slice that ends now, after `took_s` seconds of wall time."""
        return min(took_s, thread_time() - self._cpu_began)

    def connected(self, connection: Waiting) -> None:
        """Adds a connection whose reading stops while too much input is deferred."""
        self.connections[connection] = None

    def connection_lost(self, connection: Waiting) -> None:
        self.connections.pop(connection, None)

    def defer(self, connection: Waiting) -> None:
        """Defers `connection` to a later round."""
        size = connection.read_bytes
        if connection.is_busy():
            heappush(self._busy, _Busy(connection.forgiven_at(), next(self._numbers), connection, size))
        else:
            self._unknown.append((connection, size))
        self._waiting_bytes += size
        if self._waiting_bytes > WAITING_READS_BYTES and not self.is_full:
            self._fill(is_full=True)
        self._need_round()

    def _fill(self, *, is_full: bool) -> None:
        self.is_full = is_full
        for connection in list(self.connections):
            connection.read_or_stop()

    def _need_round(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._job.wake()

    def new_round(self) -> float | None:
        """Starts a round: serves deferred connections. Returns 0 if another round is needed at once, otherwise None."""
        if self.used > SLICE_S:
            self.watch.round_ended(self.used)
        self.used = 0.0
        self.slice_s = SLICE_S
        self.is_used_up = False
        for connection, size in self._in_turn():
            self._waiting_bytes -= size
            connection.go_on()
            if self.used > WAITING_S:
                break
        if self.is_full and self._waiting_bytes <= WAITING_READS_BYTES // 2:
            self._fill(is_full=False)
        self._is_due = bool(self._unknown or self._busy or self.used > SLICE_S)
        return 0.0 if self._is_due else None

    def _in_turn(self) -> Iterator[tuple[Waiting, int]]:
        """Yields the connections that are deferred now. The two groups alternate, also across rounds."""
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
