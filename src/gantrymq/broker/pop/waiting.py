"""Pops and notifications that wait for messages (`PopLongPollingService`).

Those of one group that ask for the same queue, or for all of a topic, form a line and watch their queues together. When
messages come they are tried from the front until one comes back empty: a thousand idle consumers cost no more than one.
A line that is empty goes at the next look at the deadlines, once a second, so that a busy consumer doesn't set its
watches anew for each request.

Whatever is to be done, for however many, is done in turns of some milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.broker.long_polling import LongPolling
from gantrymq.broker.part import Part
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

#: Topic, group, queue id; -1 for all queues.
LineKey = tuple[str, str, int]

#: How often requests are looked for whose time is up, s.
_LOOK_S = 1.0
#: No line is tried again sooner, s: a clock may be a little behind the other.
_SOONEST_S = 0.001
#: So long the loop is held at most before others get their turn, s.
_TURN_S = 0.005
#: The part of all places that one connection gets at most.
_SHARE = 4
#: All lines together watch so many queues, each counted for each line: about 100 bytes.
MAX_WATCHES = 500_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A request on hold until `deadline` (loop time, s). `attempt(expired)`: whether it is answered now."""

    connection: Connection
    request: RemotingCommand
    deadline: float
    attempt: Callable[[bool], bool]


@dataclass(slots=True)
class _Line:
    queues: tuple[ConsumeQueue, ...] = ()
    waiters: dict[Waiter, None] = field(default_factory=dict)
    #: When it is tried again, though no message may have come (loop time, s).
    wake_at: float = inf


class PopWaiting(Part):
    """At most `line_limit` wait in one line and `limit` in all, a quarter of these of one connection."""

    def __init__(self, name: str, polling: LongPolling, jobs: Jobs, *, line_limit: int, limit: int) -> None:
        self._polling = polling
        self._line_limit = line_limit
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._lines: dict[LineKey, _Line] = {}
        self._watched: dict[ConsumeQueue, dict[LineKey, None]] = {}
        self._by_connection: dict[Connection, dict[Waiter, _Line]] = {}
        self._count = 0
        self._watches = 0
        #: (when, line); what a line doesn't know any more is passed over.
        self._wakes: list[tuple[float, LineKey]] = []
        #: What is to be done: lines to be tried, requests whose time is up, lines to be forgotten.
        self._due: dict[LineKey, None] = {}
        self._expired: deque[tuple[_Line, Waiter]] = deque()
        self._empty: deque[LineKey] = deque()
        self._answering = jobs.repeating(f"answer waiting {name}", self._answer)
        #: Not while nobody waits.
        self._looking = jobs.repeating(f"look after waiting {name}", self._look, after_error_s=_LOOK_S)
        self._next_look = 0.0
        self._stopped = False

    async def start(self) -> None:
        self._answering.start()
        self._looking.start()

    def hold(self, key: LineKey, queues: tuple[ConsumeQueue, ...], waiter: Waiter) -> bool:
        """Keeps the request until one of `queues` grows or its deadline comes; False when too many wait."""
        line = self._lines.get(key)
        of_connection = self._by_connection.get(waiter.connection, ())
        if (
            self._count >= self._limit
            or len(of_connection) >= max(self._limit // _SHARE, 1)
            or (line is not None and len(line.waiters) >= self._line_limit)
        ):
            return False
        if self._watches + len(queues) > MAX_WATCHES and (line is None or line.queues != queues):
            return False
        if line is None:
            if not self._lines:
                self._next_look = self._loop.time() + _LOOK_S
                self._looking.wake(_LOOK_S)
            line = self._lines[key] = _Line()
        if line.queues != queues:
            self._watch(key, line, queues)
        line.waiters[waiter] = None
        self._by_connection.setdefault(waiter.connection, {})[waiter] = line
        self._count += 1
        return True

    def set_limits(self, *, line_limit: int, limit: int) -> None:
        """For requests that come from now on."""
        self._line_limit = line_limit
        self._limit = limit

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def wake(self, key: LineKey) -> None:
        """There may be messages for this line: it is tried soon, once, however often it is asked for."""
        self._due[key] = None
        self._answering.wake()

    def wake_in(self, key: LineKey, seconds: float) -> None:
        """As `wake`, after that time; the shortest one counts. Who waits must know by then whether it was in vain."""
        line = self._lines.get(key)
        at = self._loop.time() + max(seconds, _SOONEST_S)
        if line is not None and at < line.wake_at and any(at < waiter.deadline for waiter in line.waiters):
            line.wake_at = at
            heapq.heappush(self._wakes, (at, key))
            self._looking.wake(at - self._loop.time())

    def count(self, key: LineKey) -> int:
        """How many wait in a line."""
        line = self._lines.get(key)
        return 0 if line is None else len(line.waiters)

    def __len__(self) -> int:
        return self._count

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone, and its requests with it."""
        self._expired.extend((line, waiter) for waiter, line in self._by_connection.get(connection, {}).items())
        self._answering.wake()

    async def stop(self) -> None:
        """Answers all that wait: the broker is going down."""
        self._looking.cancel()
        self._answering.cancel()
        await self.dismiss()

    def admit(self) -> None:
        """Whoever comes from now on may wait."""
        self._stopped = False

    async def dismiss(self) -> None:
        """Answers all that wait, with nothing: the broker hands out nothing any more."""
        self._stopped = True
        for line in self._lines.values():
            self._expired.extend((line, waiter) for waiter in line.waiters)
        more: float | None = 0.0
        while more is not None:
            more = self._answer()
            await asyncio.sleep(0)

    def _arrived(self, queue: ConsumeQueue) -> None:
        for key in self._watched.get(queue, ()):
            self.wake(key)

    def _look(self) -> float:
        now = self._loop.time()
        while self._wakes and self._wakes[0][0] <= now:
            at, key = heapq.heappop(self._wakes)
            line = self._lines.get(key)
            if line is not None and line.wake_at == at:
                line.wake_at = inf
                self.wake(key)
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            for key, line in self._lines.items():
                self._expired.extend((line, waiter) for waiter in line.waiters if waiter.deadline <= now)
                if not line.waiters:
                    self._empty.append(key)
            if self._expired or self._empty:
                self._answering.wake()
        if not self._lines:
            return inf
        return min(self._next_look, self._wakes[0][0] if self._wakes else inf) - self._loop.time()

    def _answer(self) -> float | None:
        """A turn's share of what is to be done; None when that was all."""
        end = monotonic() + _TURN_S
        while monotonic() < end:
            if self._expired:
                line, waiter = self._expired.popleft()
                if waiter in line.waiters:
                    self._remove(line, waiter)
                    self._attempt(waiter, expired=True)
            elif self._due:
                key = next(iter(self._due))
                del self._due[key]
                self._try(key)
            elif self._empty:
                self._forget(self._empty.popleft())
            else:
                return None
        return 0.0

    def _try(self, key: LineKey) -> None:
        """Tries the first of a line; the next one's turn comes after other lines."""
        line = self._lines.get(key)
        if line is not None and line.waiters:
            waiter = next(iter(line.waiters))
            if self._attempt(waiter, expired=False):
                self._remove(line, waiter)
                self._due[key] = None

    def _forget(self, key: LineKey) -> None:
        line = self._lines.get(key)
        if line is not None and not line.waiters:
            self._watch(key, line, ())
            del self._lines[key]

    def _attempt(self, waiter: Waiter, *, expired: bool) -> bool:
        """Whether the request is answered now; one whose attempt raises is answered with the error."""
        try:
            return waiter.attempt(expired)
        except Exception as e:
            waiter.connection.reply(waiter.request, error_response(e, waiter.request, waiter.connection.address))
            return True

    def _watch(self, key: LineKey, line: _Line, queues: tuple[ConsumeQueue, ...]) -> None:
        """Makes `queues` the ones that the line watches."""
        for queue in line.queues:
            lines = self._watched[queue]
            del lines[key]
            if not lines:
                del self._watched[queue]
                self._polling.unwatch(queue, self._arrived)
        for queue in queues:
            if queue not in self._watched:
                self._watched[queue] = {}
                self._polling.watch(queue, self._arrived)
            self._watched[queue][key] = None
        self._watches += len(queues) - len(line.queues)
        line.queues = queues

    def _remove(self, line: _Line, waiter: Waiter) -> None:
        if waiter in line.waiters:
            del line.waiters[waiter]
            of_connection = self._by_connection[waiter.connection]
            del of_connection[waiter]
            if not of_connection:
                del self._by_connection[waiter.connection]
            self._count -= 1


def wake_when_free(
    waiting: PopWaiting, orderly: OrderlyPops, line: LineKey, queue_ids: Iterable[int], tried_ms: int
) -> None:
    """Has an orderly line tried again when the first of its queues is free that was not when it was tried.

    `tried_ms` is before that: a queue that was free a moment later may have been taken for a blocked one.
    """
    topic, group, _ = line
    free_ms = orderly.free_at(topic, group, queue_ids, tried_ms)
    if free_ms is not None:
        waiting.wake_in(line, (free_ms - clock.now_ms()) / 1000)
