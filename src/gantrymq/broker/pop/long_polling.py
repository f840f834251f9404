"""Pops and notifications that wait for messages (`PopLongPollingService`).

Requests of one group for the same queue, or for all queues of a topic, share a wait queue, which watches these topic
queues. When messages arrive, the requests are tried in order until one finds no message. An arrival therefore takes
about the same time for a thousand idle consumers of a group as for one.

An empty wait queue is removed at the next check of the deadlines, once a second. Because of this delay, a busy consumer
does not need new watches for each request.

All work runs in time slices of some milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.broker.feature import Feature
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pull import LongPolling
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.responses import error_response
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

#: Key of a wait queue: topic, group, queue id (-1 for all queues).
QueueKey = tuple[str, str, int]

#: Interval of the check for expired requests, in seconds.
_LOOK_S = 1.0
#: Shortest delay before a wait queue is tried again, in seconds. The event loop's clock and the system clock can
#: differ.
_SOONEST_S = 0.001
#: Longest time slice in one event-loop iteration, in seconds.
_SLICE_S = 0.005
#: One connection may have at most 1/_SHARE of all waiting requests.
_SHARE = 4
#: Maximum number of watches in total. Each wait queue has one watch, of about 100 bytes, for each topic queue.
MAX_WATCHES = 500_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits until `deadline` (event-loop time, in seconds).

    `attempt(expired)` tries to respond. It returns True if the request needs no further attempt.
    """

    connection: Connection
    request: RemotingCommand
    deadline: float
    attempt: Callable[[bool], bool]


@dataclass(slots=True)
class _WaitQueue:
    queues: tuple[ConsumeQueue, ...] = ()
    waiters: OrderedDict[Waiter, None] = field(default_factory=OrderedDict)
    #: Time of the next attempt if no message arrives earlier (event-loop time, in seconds).
    wake_at: float = inf


class PopLongPolling(Feature):
    """Holds requests until messages arrive or their deadline passes.

    Limits for waiting requests: `queue_limit` in one wait queue, `limit` in total, and a quarter of `limit` for a
    connection.

    Attributes:
        watches: Number of topic queues that the wait queues watch, at most `MAX_WATCHES`.
    """

    def __init__(self, name: str, polling: LongPolling, jobs: Jobs, *, queue_limit: int, limit: int) -> None:
        self._polling = polling
        self.queue_limit = queue_limit
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._queues: dict[QueueKey, _WaitQueue] = {}
        self._watched: dict[ConsumeQueue, dict[QueueKey, None]] = {}
        self._by_connection: dict[Connection, dict[Waiter, _WaitQueue]] = {}
        self._count = 0
        self.watches = 0
        #: Heap of (time, wait queue). An entry is outdated if it differs from the wait queue's `wake_at`.
        self._wakes: list[tuple[float, QueueKey]] = []
        #: Pending work: wait queues to try, expired requests to answer, and empty wait queues to remove.
        self._due: OrderedDict[QueueKey, None] = OrderedDict()
        self._expired: deque[tuple[_WaitQueue, Waiter]] = deque()
        self._empty: deque[QueueKey] = deque()
        self._answering = jobs.repeating(f"answer waiting {name}", self._answer)
        #: Sleeps while there are no wait queues.
        self._looking = jobs.repeating(f"look after waiting {name}", self._look, after_error_s=_LOOK_S)
        self._next_look = 0.0
        self._stopped = False

    async def start(self) -> None:
        self._answering.start()
        self._looking.start()

    def hold(self, key: QueueKey, queues: tuple[ConsumeQueue, ...], waiter: Waiter) -> bool:
        """Holds a request until one of `queues` grows or its deadline passes. Returns False if too many are waiting."""
        wait_queue = self._queues.get(key)
        of_connection = self._by_connection.get(waiter.connection, ())
        if (
            self._count >= self.limit
            or len(of_connection) >= max(self.limit // _SHARE, 1)
            or (wait_queue is not None and len(wait_queue.waiters) >= self.queue_limit)
        ):
            return False
        if self.watches + len(queues) > MAX_WATCHES and (wait_queue is None or wait_queue.queues != queues):
            return False
        if wait_queue is None:
            if not self._queues:
                self._next_look = self._loop.time() + _LOOK_S
                self._looking.wake(_LOOK_S)
            wait_queue = self._queues[key] = _WaitQueue()
        if wait_queue.queues != queues:
            self._watch(key, wait_queue, queues)
        wait_queue.waiters[waiter] = None
        self._by_connection.setdefault(waiter.connection, {})[waiter] = wait_queue
        self._count += 1
        return True

    def set_limits(self, *, queue_limit: int, limit: int) -> None:
        """Sets the limits for new requests."""
        self.queue_limit = queue_limit
        self.limit = limit

    @property
    def is_stopped(self) -> bool:
        """True if new requests may not wait."""
        return self._stopped

    def wake(self, key: QueueKey) -> None:
        """Schedules an attempt for a wait queue, because there may be messages. Several calls result in one attempt."""
        self._due[key] = None
        self._answering.wake()

    def wake_in(self, key: QueueKey, seconds: float) -> None:
        """Like `wake`, but after a delay; the shortest delay counts. Has no effect if all requests expire earlier."""
        wait_queue = self._queues.get(key)
        at = self._loop.time() + max(seconds, _SOONEST_S)
        if (
            wait_queue is not None
            and at < wait_queue.wake_at
            and any(at < waiter.deadline for waiter in wait_queue.waiters)
        ):
            wait_queue.wake_at = at
            heapq.heappush(self._wakes, (at, key))
            self._looking.wake(at - self._loop.time())

    def count(self, key: QueueKey) -> int:
        """Returns the number of requests in a wait queue."""
        wait_queue = self._queues.get(key)
        return 0 if wait_queue is None else len(wait_queue.waiters)

    def __len__(self) -> int:
        return self._count

    def connection_closed(self, connection: Connection) -> None:
        """Removes the requests of a closed connection."""
        self._expired.extend(
            (wait_queue, waiter) for waiter, wait_queue in self._by_connection.get(connection, {}).items()
        )
        self._answering.wake()

    async def stop(self) -> None:
        """Stops the background jobs and responds to all waiting requests, without messages."""
        self._looking.cancel()
        self._answering.cancel()
        await self.dismiss()

    def admit(self) -> None:
        """Allows new requests to wait."""
        self._stopped = False

    def dismiss_soon(self) -> None:
        """Responds to all waiting requests, without messages. Later requests may not wait."""
        self._stopped = True
        for wait_queue in self._queues.values():
            self._expired.extend((wait_queue, waiter) for waiter in wait_queue.waiters)
        self._answering.wake()

    async def dismiss(self) -> None:
        """Like `dismiss_soon`, but returns after all responses are sent."""
        self.dismiss_soon()
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
            wait_queue = self._queues.get(key)
            if wait_queue is not None and wait_queue.wake_at == at:
                wait_queue.wake_at = inf
                self.wake(key)
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            for key, wait_queue in self._queues.items():
                self._expired.extend((wait_queue, waiter) for waiter in wait_queue.waiters if waiter.deadline <= now)
                if not wait_queue.waiters:
                    self._empty.append(key)
            if self._expired or self._empty:
                self._answering.wake()
        if not self._queues:
            return inf
        return min(self._next_look, self._wakes[0][0] if self._wakes else inf) - self._loop.time()

    def _answer(self) -> float | None:
        """Runs for one time slice. Returns None if no work is left."""
        end = monotonic() + _SLICE_S
        while monotonic() < end:
            if self._expired:
                wait_queue, waiter = self._expired.popleft()
                if waiter in wait_queue.waiters:
                    self._remove(wait_queue, waiter)
                    self._attempt(waiter, expired=True)
            elif self._due:
                key, _ = self._due.popitem(last=False)
                self._try(key)
            elif self._empty:
                self._forget(self._empty.popleft())
            else:
                return None
        return 0.0

    def _try(self, key: QueueKey) -> None:
        """Tries the first request of a wait queue. If it succeeds, the next one follows after other wait queues."""
        wait_queue = self._queues.get(key)
        if wait_queue is not None and wait_queue.waiters:
            waiter = next(iter(wait_queue.waiters))
            if self._attempt(waiter, expired=False):
                self._remove(wait_queue, waiter)
                self._due[key] = None

    def _forget(self, key: QueueKey) -> None:
        wait_queue = self._queues.get(key)
        if wait_queue is not None and not wait_queue.waiters:
            self._watch(key, wait_queue, ())
            del self._queues[key]

    def _attempt(self, waiter: Waiter, *, expired: bool) -> bool:
        """Runs the attempt of a request and returns its result. If the attempt raises, responds with the error."""
        try:
            return waiter.attempt(expired)
        except Exception as e:
            waiter.connection.reply(waiter.request, error_response(e, waiter.request, waiter.connection.address))
            return True

    def _watch(self, key: QueueKey, wait_queue: _WaitQueue, queues: tuple[ConsumeQueue, ...]) -> None:
        """Replaces the topic queues that a wait queue watches by `queues`."""
        for queue in wait_queue.queues:
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
        self.watches += len(queues) - len(wait_queue.queues)
        wait_queue.queues = queues

    def _remove(self, wait_queue: _WaitQueue, waiter: Waiter) -> None:
        if waiter in wait_queue.waiters:
            del wait_queue.waiters[waiter]
            of_connection = self._by_connection[waiter.connection]
            del of_connection[waiter]
            if not of_connection:
                del self._by_connection[waiter.connection]
            self._count -= 1


def wake_when_free(
    waiting: PopLongPolling, orderly: OrderlyPops, wait_queue: QueueKey, queue_ids: Iterable[int], tried_ms: int
) -> None:
    """For pops in order: schedules an attempt for a wait queue when the first blocked topic queue is unblocked.

    `tried_ms` is a time before the last attempt. A queue that is unblocked after `tried_ms` counts, because the last
    attempt may have found the queue blocked.
    """
    topic, group, _ = wait_queue
    free_ms = orderly.free_at(topic, group, queue_ids, tried_ms)
    if free_ms is not None:
        waiting.wake_in(wait_queue, (free_ms - clock.now_ms()) / 1000)
