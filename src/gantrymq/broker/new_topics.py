"""Requests that put a message into a topic that isn't on the disk yet, as it is now: they wait until it is.

Nobody would find their messages after the broker was killed. Java writes the table within the send.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from gantrymq.background.jobs import Jobs
from gantrymq.broker.held_requests import TURN_S, Held, HeldRequests
from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import StoreError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import monotonic


class NewTopics(Part):
    """Who waits for the topics of one broker (`BrokerTopics.is_written`); one job for all of them."""

    def __init__(self, topics: BrokerTopics, jobs: Jobs) -> None:
        self._topics = topics
        self._held = HeldRequests("new topics are written")
        self._line: deque[Held] = deque()
        #: How many wait for each topic.
        self._waiting: Counter[str] = Counter()
        self._job = jobs.repeating("go on with requests for new topics", self._go_on)

    @property
    def is_answering(self) -> bool:
        """Whoever is handled now has waited."""
        return self._held.current is not None

    def has_line(self, topic: str) -> bool:
        """Others wait for this topic, who are to have their answers before who comes now."""
        return topic in self._waiting

    async def start(self) -> None:
        self._job.start()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler, topic: str) -> None:
        """Has `handler` answer when all topics are on the disk as they are now; an error, if they can't be written.

        Raises RequestRefused when too much waits.
        """
        self._line.append(self._held.hold(connection, request, handler, topic=topic))
        self._waiting[topic] += 1
        self._job.wake()

    async def stop(self) -> None:
        """Who still waits gets no answer: whether its message is stored was never said."""
        await self._job.stop()

    async def _go_on(self) -> None:
        """Has those go on who wait by now; who comes meanwhile is for the next round."""
        line, self._line = self._line, deque()
        error: StoreError | None = None
        try:
            try:
                await self._topics.written()
            except StoreError as e:
                error = e
            end = monotonic() + TURN_S
            while line:
                held = line.popleft()
                self._leaves(held.topic)
                # Each has an error of its own: one that is raised again and again keeps all their tracebacks.
                self._held.answer(held, None if error is None else StoreError(str(error)))
                if monotonic() >= end:
                    await asyncio.sleep(0)
                    end = monotonic() + TURN_S
        finally:
            # Whatever went wrong, the others still wait: the job runs again.
            self._line.extendleft(reversed(line))

    def _leaves(self, topic: str) -> None:
        self._waiting[topic] -= 1
        if not self._waiting[topic]:
            del self._waiting[topic]
