"""Runs long requests in steps, a few milliseconds per event-loop iteration, so that other requests are served.

The work of such a request is a generator that yields after each step of at most 1 ms. If it ends soon, the response is
sent at once. Otherwise it continues in later iterations. Connections take turns, one step at a time.

Decision record: docs/decisions/fair-scheduling.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.fair_queue import FairQueue
from gantrymq.limits import LONG_REQUESTS
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.quota import Quota, Share
from gantrymq.remoting.responses import error_response
from gantrymq.system.clock import monotonic, thread_time

#: The work of a request: a generator that returns a handler's result. It raises the errors of a handler.
Steps = Generator[None, None, Reply]

#: Time for new long requests in each event-loop iteration, in seconds. Waiting requests get the same time in addition.
SLICE_S = 0.01
#: Interval of the check whether full write buffers have space again, in seconds.
_FULL_S = 0.05
#: Approximate memory of a waiting request in addition to its header and body, in bytes.
_OVERHEAD = 2048


class _Waiting(NamedTuple):
    request: RemotingCommand
    steps: Steps
    size: int
    share: Share


class LongRequests:
    """Runs the steps of long requests and sends their responses."""

    def __init__(self, jobs: Jobs) -> None:
        self._loop = asyncio.get_running_loop()
        self._job = jobs.repeating("go on with long requests", self._go_on)
        self._queue: FairQueue[Connection, _Waiting] = FairQueue()
        self._quota = Quota(LONG_REQUESTS)
        #: Time used by new requests in this event-loop iteration, in seconds.
        self._used = 0.0
        self._stopped = False

    def __len__(self) -> int:
        return self._quota.all.items

    def start(self) -> None:
        self._stopped = False
        self._job.start()

    async def stop(self) -> None:
        """Completes all waiting requests and refuses new requests."""
        self._stopped = True
        self._job.cancel()
        while self._queue:
            self._go_on()
            await asyncio.sleep(0)

    def is_waiting(self, connection: Connection) -> bool:
        """Returns true if requests of this connection are waiting. New requests then join the wait queue."""
        return connection in self._queue

    def run(self, connection: Connection, request: RemotingCommand, steps: Steps) -> Reply:
        """Runs `steps` and returns their result. Returns None if they need more time; the response then follows.

        Raises the errors of the steps. Raises RequestRefused if too many requests are waiting.
        """
        if connection not in self._queue and self._used < SLICE_S:
            if not self._used:
                self._loop.call_soon(self._slice_ended)
            left_s = SLICE_S - self._used
            began = monotonic()
            try:
                while True:
                    next(steps)
                    if monotonic() - began >= left_s:
                        break
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            finally:
                self._used += monotonic() - began
        self._wait(connection, request, steps)
        return None

    def connection_closed(self, connection: Connection) -> None:
        """Drops the waiting requests of a closed connection."""
        while connection in self._queue:
            waiting = self._queue.take_of(connection)
            waiting.share.release(waiting.size)
            waiting.steps.close()

    def _slice_ended(self) -> None:
        self._used = 0.0

    def _wait(self, connection: Connection, request: RemotingCommand, steps: Steps) -> None:
        share = self._quota.share(connection)
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._stopped or connection.is_closed or not share.take(size):
            steps.close()
            raise self._quota.refusal()
        self._queue.add(connection, _Waiting(request, steps, size, share))
        self._job.wake()

    def _go_on(self) -> float | None:
        """Runs steps of waiting requests for one event-loop iteration, one step per connection in rotation."""
        now = monotonic()
        deadline = now + SLICE_S
        full = 0
        while self._queue:
            connection, waiting = self._queue.take()
            if connection.is_full and not self._stopped:
                # The peer does not read, so more responses would only fill the buffer.
                self._queue.put_back(connection, waiting)
                full += 1
                if full >= self._queue.source_count:
                    return _FULL_S
                continue
            full = 0
            cpu_began = thread_time()
            is_done = self._step(connection, waiting)
            now = monotonic()
            connection.charge(thread_time() - cpu_began)
            if is_done:
                waiting.share.release(waiting.size)
            elif connection.is_closed:
                # A failed write, or the step itself, has closed the connection.
                waiting.share.release(waiting.size)
                waiting.steps.close()
            else:
                self._queue.put_back(connection, waiting)
            if now >= deadline:
                break
        return 0.0 if self._queue else None

    def _step(self, connection: Connection, waiting: _Waiting) -> bool:
        """Runs one step of a request. After the last step, sends the response and returns True."""
        request = waiting.request
        try:
            next(waiting.steps)
            return False
        except StopIteration as end:
            reply: Reply = end.value
        except Exception as e:
            reply = error_response(e, request, connection.address)
        if reply is not None:
            connection.reply(request, reply)
        return True
