"""Pulls that wait for messages (`PullRequestHoldService`).

A waiting pull costs an entry in three dictionaries and no timer of its own: one job looks each second for the pulls
whose time is up. Arrivals are gathered and answered once per turn of the loop, so a pull gets all that came in one
read. Others than pulls (`PopWaiting`) watch queues here too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gantrymq.background.jobs import Jobs
from gantrymq.broker.message_filter import MessageFilter
from gantrymq.broker.part import Part
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

#: How often pulls are looked for whose time is up, s.
_LOOK_S = 1.0

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class WaitingPull:
    """A pull request on hold until `deadline` (loop time, s). `topic_begin` is that of its topic at its arrival."""

    connection: Connection
    request: RemotingCommand
    header: PullMessageRequestHeader
    queue: ConsumeQueue
    wanted: MessageFilter
    deadline: float
    topic_begin: int


#: Called once per turn of the loop in which a queue got messages.
Watcher = Callable[[ConsumeQueue], None]


class LongPolling(Part):
    """`retry(pull, expired)` answers the pull or holds it again; one that raises is answered with the error."""

    def __init__(self, retry: Callable[[WaitingPull, bool], None], jobs: Jobs) -> None:
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        #: Who came first is answered first.
        self._waiting: dict[ConsumeQueue, dict[WaitingPull, None]] = {}
        self._watchers: dict[ConsumeQueue, dict[Watcher, None]] = {}
        #: The queues of both.
        self._wanted: set[ConsumeQueue] = set()
        self._by_second: dict[int, dict[WaitingPull, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingPull, None]] = {}
        self._arrived: dict[ConsumeQueue, None] = {}
        self._count = 0
        self._expiring = jobs.repeating("expire long polls", self._expire, _LOOK_S)
        self._stopped = False

    async def start(self) -> None:
        self._expiring.start()

    def hold(self, pull: WaitingPull) -> None:
        """Keeps `pull` until its queue grows or its deadline comes."""
        if self._stopped:
            self._try(pull, expired=True)
            return
        self._waiting.setdefault(pull.queue, {})[pull] = None
        self._wanted.add(pull.queue)
        self._by_second.setdefault(int(pull.deadline), {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        self._count += 1

    def watch(self, queue: ConsumeQueue, watcher: Watcher) -> None:
        """Calls `watcher` whenever the queue gets messages, until `unwatch`."""
        self._watchers.setdefault(queue, {})[watcher] = None
        self._wanted.add(queue)

    def unwatch(self, queue: ConsumeQueue, watcher: Watcher) -> None:
        _discard(self._watchers, queue, watcher)
        self._forget(queue)

    def message_arrived(self, queue: ConsumeQueue) -> None:
        """Called for every message stored: costs one look-up when nobody waits."""
        if queue in self._wanted:
            if not self._arrived:
                self._loop.call_soon(self._answer)
            self._arrived[queue] = None

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone, and its pulls with it."""
        for pull in list(self._by_connection.get(connection, ())):
            self._remove(pull)

    async def stop(self) -> None:
        """Answers all that wait: the broker is going down."""
        self._stopped = True
        self._expiring.cancel()
        for pull in [pull for pulls in self._waiting.values() for pull in pulls]:
            self._remove(pull)
            self._try(pull, expired=True)

    def __len__(self) -> int:
        return self._count

    def count_of(self, connection: Connection) -> int:
        """How many pulls of one connection wait."""
        return len(self._by_connection.get(connection, ()))

    def _answer(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for queue in arrived:
            for pull in list(self._waiting.get(queue, ())):
                self._remove(pull)
                self._try(pull, expired=False)
            for watcher in list(self._watchers.get(queue, ())):
                try:
                    watcher(queue)
                except Exception:
                    # The others are to hear of it, too.
                    log.exception("a watcher of %s failed", queue.topic)

    def _expire(self) -> None:
        now = self._loop.time()
        for second in [second for second in self._by_second if second < int(now)]:
            for pull in list(self._by_second.get(second, ())):
                self._remove(pull)
                self._try(pull, expired=True)

    def _try(self, pull: WaitingPull, *, expired: bool) -> None:
        try:
            self._retry(pull, expired)
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
