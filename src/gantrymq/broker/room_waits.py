"""Requests for whose message the store has no room just now: they wait until a file has been made, 3 s at most.

Java's threads wait for the file themselves (`AllocateMappedFileService.putRequestAndReturnMappedFile`, 5 s).
"""

from __future__ import annotations

import asyncio
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.fair_line import FairLine
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

    When there is room all who wait are tried, the oldest first (`fair_line`); who needs more waits once more, and so do
    those who need the same and are tried after him.
    """

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._held = HeldRequests("a file of the store is made")
        self._line = FairLine()
        #: Those who were tried and wait for more.
        self._again: list[Held] = []
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
        with self._store.waiting():
            for held in self._again:
                self._held.answer(held)
            while self._line:
                self._held.answer(self._line.take_oldest())
        self._store.end_line()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Has `handler` answer when the store has room; SYSTEM_BUSY where that takes too long.

        Raises RequestRefused when too much waits.
        """
        if self._held.current is not None:
            self._again.append(self._held.again(handler))
            return
        self._line.add(self._held.hold(connection, request, handler, monotonic() + WAIT_S))
        if len(self._line) == 1 and not self._again:
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
        self._job.wake(max(self._line.oldest.deadline - monotonic(), 0.0))

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._room_made)

    def _room_made(self) -> None:
        self._has_room = True
        self._line.begin_with_oldest()
        self._store.end_line(anew=True)
        self._store.close_line(has_room=True)
        self._job.wake()

    def _go_on(self) -> float | None:
        now = monotonic()
        end = now + TURN_S
        line = self._line
        if self._has_room:
            # They are those before whom nobody else is to be served.
            self._store.open_line()
        while line and (self._has_room or line.oldest.deadline <= now):
            held = line.take() if self._has_room else line.take_oldest()
            self._held.answer(held, self._held.busy() if held.deadline <= now else None)
            if monotonic() >= end:
                break
        if line and self._has_room:
            self._store.close_line(has_room=True)
            return 0.0
        self._put_back()
        if not line:
            self._store.end_line()
        elif self._has_room:
            self._wait()
        else:
            return max(line.oldest.deadline - now, 0.0)
        return None

    def _put_back(self) -> None:
        """Those who were tried are in the line again, which is empty."""
        again, self._again = self._again, []
        for held in sorted(again, key=lambda held: held.number):
            self._line.add(held)
