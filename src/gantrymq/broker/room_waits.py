"""Requests for whose message the store has no room just now: they wait until a file has been made, 3 s at most.

Java's threads wait for the file themselves (`AllocateMappedFileService.putRequestAndReturnMappedFile`, 5 s).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.errors import RequestRefused, StoreBusy
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

#: So long a send waits: a client's own patience ends then, too.
WAIT_S = 3.0
#: What may wait in all, bytes; about what a request takes besides its body and header.
MAX_HELD_BYTES = 64 * 1024 * 1024
_OVERHEAD = 512
#: So long sends that have waited are worked off in one turn of the loop, s.
_TURN_S = 0.005


class _Held(NamedTuple):
    connection: Connection
    request: RemotingCommand
    handler: RequestHandler
    size: int
    deadline: float


class RoomWaits(Part):
    """Who waits for room in the store of one broker.

    When there is room all who wait are tried, in the order in which they came; who needs more waits once more, and so
    do those behind him who need the same.
    """

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._held: deque[_Held] = deque()
        #: Those who were tried and wait for more; they come before the others.
        self._again: deque[_Held] = deque()
        self._size = 0
        #: The one that is being answered.
        self._current: _Held | None = None
        self._has_room = False
        self._job = jobs.repeating("go on with sends that waited for a file", self._go_on)

    async def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        """Answers who waits; the store makes the room at once."""
        self._job.cancel()
        self._held.extendleft(reversed(self._again))
        self._again.clear()
        with self._store.waiting():
            while self._held:
                self._answer(self._held.popleft())
        self._store.end_line()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Has `handler` answer when the store has room; SYSTEM_BUSY where that takes too long.

        Raises RequestRefused when too much waits.
        """
        if self._current is not None:
            self._again.append(self._current._replace(handler=handler))
            self._size += self._current.size
            return
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._size + size > MAX_HELD_BYTES:
            raise _busy()
        self._held.append(_Held(connection, request, handler, size, monotonic() + WAIT_S))
        self._size += size
        if len(self._held) == 1 and not self._again:
            self._wait()

    def holding(self, handler: RequestHandler) -> RequestHandler:
        """`handler`, for which its request waits where it raises StoreBusy; nothing must have been done by then."""

        def handle(connection: Connection, request: RemotingCommand) -> Reply:
            try:
                return handler(connection, request)
            except StoreBusy:
                self.hold(connection, request, handle)
                return None

        return handle

    def _wait(self) -> None:
        self._has_room = False
        self._store.close_line()
        # It is called in the store's thread.
        self._store.when_room(partial(self._wake_soon, asyncio.get_running_loop()))
        self._job.wake(max(self._held[0].deadline - monotonic(), 0.0))

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._room_made)

    def _room_made(self) -> None:
        self._has_room = True
        self._store.end_line(anew=True)
        self._store.close_line(has_room=True)
        self._job.wake()

    def _go_on(self) -> float | None:
        now = monotonic()
        end = now + _TURN_S
        if self._has_room:
            # They are those before whom nobody else is to be served.
            self._store.open_line()
        while self._held and (self._has_room or self._held[0].deadline <= now):
            held = self._held.popleft()
            self._answer(held, is_late=held.deadline <= now)
            if monotonic() >= end:
                break
        if self._held and self._has_room:
            self._store.close_line(has_room=True)
            return 0.0
        self._held.extendleft(reversed(self._again))
        self._again.clear()
        if not self._held:
            self._store.end_line()
        elif self._has_room:
            self._wait()
        else:
            return max(self._held[0].deadline - now, 0.0)
        return None

    def _answer(self, held: _Held, *, is_late: bool = False) -> None:
        connection, request = held.connection, held.request
        self._size -= held.size
        self._current = held
        try:
            if is_late:
                raise _busy()
            reply = held.handler(connection, request)
        except Exception as e:
            reply = error_response(e, request, connection.address)
        finally:
            self._current = None
        if reply is not None:
            connection.reply(request, reply)


def _busy() -> RequestRefused:
    return RequestRefused(
        ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while: a file of the store is made"
    )
