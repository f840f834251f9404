"""PreallocationWaits: requests that wait until the store has preallocated a file, for at most 3 s.

In Java, the request's thread waits for the file (`AllocateMappedFileService.putRequestAndReturnMappedFile`, 5 s).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append.pending_requests import SLICE_S, PendingRequest, PendingRequests
from gantrymq.broker.feature import Feature
from gantrymq.errors import StoreBusy
from gantrymq.fair_queue import FairQueue
from gantrymq.limits import PREALLOCATION_WAITS
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

#: Longest wait of a request, in seconds. It is equal to a client's default timeout.
WAIT_S = 3.0


class PreallocationWaits(Feature):
    """The requests of one broker that wait for preallocated space in the store.

    After space is preallocated, all requests are tried, with the connections in rotation. If a request needs more
    space, it waits again. All later requests that need the same space wait again, too.
    """

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._pending = PendingRequests("a file of the store is made", PREALLOCATION_WAITS)
        self._queue: FairQueue[Connection, PendingRequest] = FairQueue()
        #: The requests in the queue by number, the oldest first.
        self._by_age: OrderedDict[int, PendingRequest] = OrderedDict()
        #: Requests that were tried and need more space.
        self._again: list[PendingRequest] = []
        self._has_file = False
        self._job = jobs.repeating("go on with sends that waited for a file", self._go_on)

    @property
    def is_answering(self) -> bool:
        """Whether the current request has waited in this queue."""
        return self._pending.current is not None

    async def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        """Handles all pending requests. The store blocks until it has created the files."""
        self._job.cancel()
        with self._store.waiting():
            for held in self._again:
                self._pending.answer(held)
            while self._queue:
                self._pending.answer(self._take_oldest())
        self._store.end_wait_queue()

    def hold(self, connection: Connection, request: RemotingCommand, handler: RequestHandler) -> None:
        """Adds a request. `handler` handles it when the store has space. After WAIT_S, the response is SYSTEM_BUSY.

        Raises RequestRefused if the pending requests exceed PREALLOCATION_WAITS.
        """
        if self._pending.current is not None:
            self._again.append(self._pending.again(handler))
            return
        self._add(self._pending.hold(connection, request, handler, monotonic() + WAIT_S))
        if len(self._queue) == 1 and not self._again:
            self._wait()

    def holding(self, handler: RequestHandler) -> RequestHandler:
        """Returns a handler that calls `handler`, and calls `hold` if that raises StoreBusy.

        `handler` must not have side effects before it raises StoreBusy, because it is called again.
        """

        def handle(connection: Connection, request: RemotingCommand) -> Reply:
            try:
                return handler(connection, request)
            except StoreBusy:
                self.hold(connection, request, handle)
                return None

        return handle

    def _wait(self) -> None:
        """Starts to wait for space in the store, and for the deadline of the oldest request."""
        self._has_file = False
        self._store.close_wait_queue()
        # The store's preallocation thread calls `_wake_soon`.
        self._store.when_preallocated(partial(self._wake_soon, asyncio.get_running_loop()))
        self._job.wake(max(self._oldest.deadline - monotonic(), 0.0))

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._file_made)

    def _file_made(self) -> None:
        """Starts to handle the pending requests, because the store has preallocated space."""
        self._has_file = True
        self._store.end_wait_queue(anew=True)
        self._store.close_wait_queue(has_file=True)
        self._job.wake()

    def _go_on(self) -> float | None:
        """Handles pending requests and rejects expired ones for SLICE_S. Returns the seconds to the next run."""
        now = monotonic()
        end = now + SLICE_S
        queue = self._queue
        if self._has_file:
            # The reserved space is for the requests that are handled below.
            self._store.open_wait_queue()
        while queue and (self._has_file or self._oldest.deadline <= now):
            held = self._take() if self._has_file else self._take_oldest()
            self._pending.answer(held, self._pending.busy() if held.deadline <= now else None)
            if monotonic() >= end:
                break
        if queue and self._has_file:
            self._store.close_wait_queue(has_file=True)
            return 0.0
        self._put_back()
        if not queue:
            self._store.end_wait_queue()
        elif self._has_file:
            self._wait()
        else:
            return max(self._oldest.deadline - now, 0.0)
        return None

    def _put_back(self) -> None:
        """Puts the requests that need more space back into the queue, which is empty at this point."""
        again, self._again = self._again, []
        for held in sorted(again, key=lambda held: held.number):
            self._add(held)

    @property
    def _oldest(self) -> PendingRequest:
        """The request that arrived first. It has the earliest deadline."""
        return next(iter(self._by_age.values()))

    def _add(self, held: PendingRequest) -> None:
        self._queue.add(held.connection, held)
        self._by_age[held.number] = held

    def _take(self) -> PendingRequest:
        _, held = self._queue.take()
        del self._by_age[held.number]
        return held

    def _take_oldest(self) -> PendingRequest:
        _, held = self._by_age.popitem(last=False)
        return self._queue.take_of(held.connection)
