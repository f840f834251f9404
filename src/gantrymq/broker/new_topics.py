"""Sends to topics that sends have just made: they wait until the topic is on the disk.

Nobody would find their messages after the broker was killed. Java writes the table within the send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import NamedTuple

from gantrymq.background.tasks import Tasks
from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RequestRefused, StoreError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection, RequestHandler

#: What may wait in all, bytes; about what a request takes besides its body and header.
MAX_HELD_BYTES = 64 * 1024 * 1024
_OVERHEAD = 512
#: So long sends that have waited are worked off in one turn of the loop, s.
_TURN_S = 0.005


class _Send(NamedTuple):
    connection: Connection
    request: RemotingCommand
    handler: RequestHandler
    size: int


class NewTopics(Part):
    """The topics of one broker that aren't on the disk yet, and who waits for them."""

    def __init__(self, topics: BrokerTopics) -> None:
        self._topics = topics
        self._unwritten: set[str] = set()
        self._held: dict[str, deque[_Send]] = {}
        self._size = 0
        self._writing = Tasks("writing a new topic")

    def __contains__(self, topic: str) -> bool:
        return topic in self._unwritten

    def add(self, topic: str) -> None:
        """A topic has been made."""
        self._unwritten.add(topic)

    def hold(self, topic: str, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Has `handler` answer when the topic is on the disk; an error, if it can't be written.

        Raises RequestRefused when too much waits.
        """
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._size + size > MAX_HELD_BYTES:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while: new topics are written",
            )
        held = self._held.get(topic)
        if held is None:
            held = self._held[topic] = deque()
            self._writing.start(self._write(topic))
        held.append(_Send(connection, request, handler, size))
        self._size += size

    async def stop(self) -> None:
        """Who still waits gets no answer: whether its message is stored was never said."""
        await self._writing.stop()

    async def _write(self, topic: str) -> None:
        error: StoreError | None = None
        try:
            await self._topics.written()
            self._unwritten.discard(topic)
        except StoreError as e:
            error = e
        held = self._held.pop(topic)
        end = monotonic() + _TURN_S
        while held:
            self._go_on(held.popleft(), error)
            if monotonic() >= end:
                # Sends that come meanwhile may be stored first, as Java's many threads may do it.
                await asyncio.sleep(0)
                end = monotonic() + _TURN_S

    def _go_on(self, send: _Send, error: StoreError | None) -> None:
        connection, request = send.connection, send.request
        self._size -= send.size
        try:
            if error is not None:
                raise StoreError(str(error))
            reply = send.handler(connection, request)
        except Exception as e:
            reply = error_response(e, request, connection.address)
        if reply is not None:
            connection.reply(request, reply)
