"""Requests that put a message into a topic that isn't on the disk yet, as it is now: they wait until it is.

Nobody would find their messages after the broker was killed. Java writes the table within the send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RequestRefused, StoreError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import monotonic

#: What may wait in all, bytes; about what a request takes besides its body and header.
MAX_HELD_BYTES = 64 * 1024 * 1024
_OVERHEAD = 512
#: So long requests that have waited are worked off in one turn of the loop, s.
_TURN_S = 0.005


class _Held(NamedTuple):
    connection: Connection
    request: RemotingCommand
    handler: RequestHandler
    size: int


class NewTopics(Part):
    """Who waits for the topics of one broker (`BrokerTopics.is_written`); one job for all of them."""

    def __init__(self, topics: BrokerTopics, jobs: Jobs) -> None:
        self._topics = topics
        self._held: deque[_Held] = deque()
        self._size = 0
        self._is_answering = False
        self._job = jobs.repeating("go on with requests for new topics", self._go_on)

    @property
    def has_line(self) -> bool:
        """Others wait, who are to have their answers before who comes now."""
        return self._size > 0 and not self._is_answering

    async def start(self) -> None:
        self._job.start()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Has `handler` answer when all topics are on the disk as they are now; an error, if they can't be written.

        Raises RequestRefused when too much waits.
        """
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._size + size > MAX_HELD_BYTES:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while: new topics are written",
            )
        self._held.append(_Held(connection, request, handler, size))
        self._size += size
        self._job.wake()

    async def stop(self) -> None:
        """Who still waits gets no answer: whether its message is stored was never said."""
        await self._job.stop()

    async def _go_on(self) -> None:
        """Has those go on who wait by now; who comes meanwhile is for the next round."""
        held, self._held = self._held, deque()
        error: StoreError | None = None
        try:
            try:
                await self._topics.written()
            except StoreError as e:
                error = e
            end = monotonic() + _TURN_S
            while held:
                self._answer(held.popleft(), error)
                if monotonic() >= end:
                    # Sends that come meanwhile may be stored first, as Java's many threads may do it.
                    await asyncio.sleep(0)
                    end = monotonic() + _TURN_S
        finally:
            # Whatever went wrong, the others still wait: the job runs again.
            self._held.extendleft(reversed(held))

    def _answer(self, held: _Held, error: StoreError | None) -> None:
        connection, request = held.connection, held.request
        self._size -= held.size
        self._is_answering = True
        try:
            if error is not None:
                raise StoreError(str(error))
            reply = held.handler(connection, request)
        except Exception as e:
            reply = error_response(e, request, connection.address)
        finally:
            self._is_answering = False
        if reply is not None:
            connection.reply(request, reply)
