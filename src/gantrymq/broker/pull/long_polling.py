"""LongPolling: pull requests that wait for messages (`PullRequestHoldService`).

A waiting pull has an entry in three dictionaries and no timer. One job checks every second for expired pulls. Arrivals
are collected, and pulls are answered once in each event-loop iteration. A pull therefore gets all messages of one
socket read. If many pulls must be answered at the same time, each iteration answers them for SLICE_S, with the
connections in rotation. Other features, such as `PopLongPolling`, also watch queues here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gantrymq.background.jobs import Jobs
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import MessageFilter
from gantrymq.fair_queue import FairQueue
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.responses import error_response
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Interval of the check for expired pulls, in seconds.
_LOOK_S = 1.0
#: Longest time for which one event-loop iteration answers pulls, in seconds.
SLICE_S = 0.005

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class WaitingPull:
    """A pull request that waits for messages.

    Attributes:
        wanted: The filter of the pull.
        deadline: Time of the event loop's clock, in seconds.
        topic_begin: `ConsumerOffsets.topic_begin` when the pull arrived. It changes if the topic is deleted.
    """

    connection: Connection
    request: RemotingCommand
    header: PullMessageRequestHeader
    queue: ConsumeQueue
    wanted: MessageFilter
    deadline: float
    topic_begin: int


#: Called once in each event-loop iteration in which a queue received messages.
Watcher = Callable[[ConsumeQueue], None]


class LongPolling(Feature):
    """The waiting pulls of one broker.

    `retry(pull, expired)` answers a pull or holds it again. If it raises, the response is the error.
    """

    def __init__(self, retry: Callable[[WaitingPull, bool], None], jobs: Jobs) -> None:
        self.retry = retry
        self._loop = asyncio.get_running_loop()
        #: The pulls of each queue, the oldest first.
        self._waiting: dict[ConsumeQueue, dict[WaitingPull, None]] = {}
        self._watchers: dict[ConsumeQueue, dict[Watcher, None]] = {}
        #: The queues that have pulls or watchers.
        self._wanted: set[ConsumeQueue] = set()
        self._by_second: dict[int, dict[WaitingPull, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingPull, None]] = {}
        self._arrived: dict[ConsumeQueue, None] = {}
        self._count = 0
        #: Pulls to answer in later event-loop iterations, each once.
        self._backlog: FairQueue[Connection, WaitingPull] = FairQueue()
        #: For each pull of the backlog, whether it has expired.
        self._due: dict[WaitingPull, bool] = {}
        #: True if `_go_on` will run.
        self._goes_on = False
        self._expiring = jobs.repeating("expire long polls", self._expire, _LOOK_S)
        self._stopped = False

    async def start(self) -> None:
        self._expiring.start()

    def hold(self, pull: WaitingPull) -> None:
        """Keeps `pull` until its queue receives messages or its deadline passes."""
        if self._stopped:
            self._try(pull, expired=True)
            return
        self._waiting.setdefault(pull.queue, {})[pull] = None
        self._wanted.add(pull.queue)
        self._by_second.setdefault(int(pull.deadline), {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        self._count += 1

    def watch(self, queue: ConsumeQueue, watcher: Watcher) -> None:
        """Calls `watcher` when the queue receives messages, until `unwatch`."""
        self._watchers.setdefault(queue, {})[watcher] = None
        self._wanted.add(queue)

    def unwatch(self, queue: ConsumeQueue, watcher: Watcher) -> None:
        """Ends `watch`."""
        _discard(self._watchers, queue, watcher)
        self._forget(queue)

    def message_arrived(self, queue: ConsumeQueue) -> None:
        """Schedules responses for the queue. Called after each stored message. Cheap if no pull waits."""
        if queue in self._wanted:
            if not self._arrived:
                self._loop.call_soon(self._answer)
            self._arrived[queue] = None

    def connection_closed(self, connection: Connection) -> None:
        """Removes the pulls of a closed connection."""
        for pull in list(self._by_connection.get(connection, ())):
            self._remove(pull)
        while connection in self._backlog:
            del self._due[self._backlog.take_of(connection)]

    async def stop(self) -> None:
        self._stopped = True
        self._expiring.cancel()
        self.answer_all()
        is_left = True
        while is_left:
            is_left = self._work_off(monotonic() + SLICE_S)
            await asyncio.sleep(0)

    def answer_all(self) -> None:
        """Answers all waiting pulls as if they had expired."""
        pulls = [pull for pulls in self._waiting.values() for pull in pulls]
        self._answer_pulls(pulls, monotonic() + SLICE_S, expired=True)

    def __len__(self) -> int:
        return self._count

    def count_of(self, connection: Connection) -> int:
        """Returns the number of waiting pulls of one connection."""
        return len(self._by_connection.get(connection, ()))

    @property
    def has_backlog(self) -> bool:
        """True if pulls wait for their answer in a later event-loop iteration."""
        return bool(self._backlog)

    def _answer(self) -> None:
        """Answers the pulls, and calls the watchers, of all queues that received messages."""
        arrived, self._arrived = self._arrived, {}
        end = monotonic() + SLICE_S
        for queue in arrived:
            if (pulls := self._waiting.get(queue)) is not None:
                self._answer_pulls(pulls, end, expired=False)
            for watcher in list(self._watchers.get(queue, ())):
                try:
                    watcher(queue)
                except Exception:
                    # The other watchers must still be called.
                    log.exception("a watcher of %s failed", queue.topic)

    def _expire(self) -> None:
        now = self._loop.time()
        end = monotonic() + SLICE_S
        for second in [second for second in self._by_second if second < int(now)]:
            self._answer_pulls(self._by_second.get(second, ()), end, expired=True)

    def _answer_pulls(self, waiting: Iterable[WaitingPull], end: float, *, expired: bool) -> None:
        """Answers pulls until the monotonic time `end`. The other pulls follow in later event-loop iterations."""
        pulls = list(waiting)
        done = 0
        if not self._backlog:
            while done < len(pulls) and monotonic() < end:
                self._remove(pulls[done])
                self._try(pulls[done], expired=expired)
                done += 1
            if done == len(pulls):
                return
            self._go_on_soon()
        for pull in pulls[done:]:
            if pull not in self._due:
                self._backlog.add(pull.connection, pull)
            self._due[pull] = expired or self._due.get(pull, False)

    def _go_on_soon(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self._work_off(monotonic() + SLICE_S):
            self._go_on_soon()

    def _work_off(self, end: float) -> bool:
        """Answers pulls of the backlog until the monotonic time `end`. Returns True if some are left."""
        while self._backlog:
            _, pull = self._backlog.take()
            expired = self._due.pop(pull)
            self._remove(pull)
            self._try(pull, expired=expired)
            if monotonic() >= end:
                break
        return bool(self._backlog)

    def _try(self, pull: WaitingPull, *, expired: bool) -> None:
        try:
            self.retry(pull, expired)
        except Exception as e:
            pull.connection.reply(pull.request, error_response(e, pull.request, pull.connection.address))

    def _remove(self, pull: WaitingPull) -> None:
        self._count -= pull in self._by_connection.get(pull.connection, ())
        _discard(self._waiting, pull.queue, pull)
        _discard(self._by_second, int(pull.deadline), pull)
        _discard(self._by_connection, pull.connection, pull)
        self._forget(pull.queue)

    def _forget(self, queue: ConsumeQueue) -> None:
        if queue not in self._waiting and queue not in self._watchers:
            self._wanted.discard(queue)


def _discard(table: dict[K, dict[V, None]], key: K, value: V) -> None:
    values = table.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del table[key]
