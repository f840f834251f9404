"""Requests for whose message the store has no room just now: they wait until a file has been made, 3 s at most.

Java's threads wait for the file themselves (`AllocateMappedFileService.putRequestAndReturnMappedFile`, 5 s).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.held_requests import TURN_S, Held, HeldRequests
from gantrymq.broker.part import Part
from gantrymq.errors import StoreBusy
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

#: So long a send waits: a client's own patience ends then, too.
WAIT_S = 3.0


class RoomWaits(Part):
    """Who waits for room in the store of one broker.

    When there is room all who wait are tried, in the order in which they came; who needs more waits once more, and so
    do those behind him who need the same.
    """

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._held = HeldRequests("a file of the store is made")
        #: Those who were tried and wait for more; they come before the others.
        self._again: deque[Held] = deque()
        self._has_room = False
        self._job = jobs.repeating("go on with sends that waited for a file", self._go_on)

    @property
    def is_answering(self) -> bool:
        """Whoever is handled now has waited."""
        return self._held.current is not None

    async def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        """Answers who waits; the store makes the room at once."""
        self._job.cancel()
        line = self._held.line
        line.extendleft(reversed(self._again))
        self._again.clear()
        with self._store.waiting():
            while line:
                self._held.answer(line.popleft())
        self._store.end_line()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Has `handler` answer when the store has room; SYSTEM_BUSY where that takes too long.

        Raises RequestRefused when too much waits.
        """
        if self._held.current is not None:
            self._again.append(self._held.again(handler))
            return
        self._held.add(connection, request, handler, monotonic() + WAIT_S)
        if len(self._held.line) == 1 and not self._again:
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
        self._job.wake(max(self._held.line[0].deadline - monotonic(), 0.0))

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._room_made)

    def _room_made(self) -> None:
        self._has_room = True
        self._store.end_line(anew=True)
        self._store.close_line(has_room=True)
        self._job.wake()

    def _go_on(self) -> float | None:
        now = monotonic()
        end = now + TURN_S
        line = self._held.line
        if self._has_room:
            # They are those before whom nobody else is to be served.
            self._store.open_line()
        while line and (self._has_room or line[0].deadline <= now):
            held = line.popleft()
            self._held.answer(held, self._held.busy() if held.deadline <= now else None)
            if monotonic() >= end:
                break
        if line and self._has_room:
            self._store.close_line(has_room=True)
            return 0.0
        line.extendleft(reversed(self._again))
        self._again.clear()
        if not line:
            self._store.end_line()
        elif self._has_room:
            self._wait()
        else:
            return max(line[0].deadline - now, 0.0)
        return None
