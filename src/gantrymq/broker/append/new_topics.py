"""NewTopics: requests that store a message in a topic whose configuration is not on disk yet.

Such a request waits until the topic table is written. If the message were stored earlier and the broker killed, the
message would be inaccessible. Java writes the table within the send.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append.pending_requests import SLICE_S, PendingRequest, PendingRequests
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import BrokerTopics
from gantrymq.errors import StoreError
from gantrymq.limits import NEW_TOPIC_WAITS
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import monotonic


class NewTopics(Feature):
    """The requests of one broker that wait for a topic (`BrokerTopics.is_written`). One job handles all of them."""

    def __init__(self, topics: BrokerTopics, jobs: Jobs) -> None:
        self._topics = topics
        self._pending = PendingRequests("new topics are written", NEW_TOPIC_WAITS)
        self._queue: deque[PendingRequest] = deque()
        #: Topic -> number of requests that wait for it.
        self._waiting: Counter[str] = Counter()
        self._job = jobs.repeating("go on with requests for new topics", self._go_on)

    @property
    def is_answering(self) -> bool:
        """Whether the current request has waited in this queue."""
        return self._pending.current is not None

    def is_waiting(self, topic: str) -> bool:
        """Returns whether requests wait for this topic. If so, a new request must also wait, to keep the order."""
        return topic in self._waiting

    async def start(self) -> None:
        self._job.start()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler, topic: str) -> None:
        """Adds a request. `handler` handles it after all current changes of topics are on disk.

        If the changes can't be written, the response is an error. Raises RequestRefused if the pending requests exceed
        NEW_TOPIC_WAITS.
        """
        self._queue.append(self._pending.hold(connection, request, handler, topic=topic))
        self._waiting[topic] += 1
        self._job.wake()

    async def stop(self) -> None:
        """Stops the job. Requests that still wait get no response. Their messages are not stored."""
        await self._job.stop()

    async def _go_on(self) -> None:
        """Handles the requests that are waiting at the start of this run. Later requests wait for the next run."""
        queue, self._queue = self._queue, deque()
        error: StoreError | None = None
        try:
            try:
                await self._topics.written()
            except StoreError as e:
                error = e
            end = monotonic() + SLICE_S
            while queue:
                held = queue.popleft()
                self._leaves(held.topic)
                # One error for each request: an exception that is raised repeatedly keeps all tracebacks.
                self._pending.answer(held, None if error is None else StoreError(str(error)))
                if monotonic() >= end:
                    await asyncio.sleep(0)
                    end = monotonic() + SLICE_S
        finally:
            # If this run failed, the remaining requests wait for the next run.
            self._queue.extendleft(reversed(queue))

    def _leaves(self, topic: str) -> None:
        self._waiting[topic] -= 1
        if not self._waiting[topic]:
            del self._waiting[topic]
