"""Requests that take many steps: some milliseconds of them in each turn of the loop, so that others are served too.

The work of such a request is a generator that yields after each step, a millisecond at most. What is done soon is
answered at once; the rest goes on in later turns, each connection's requests in turn with those of the others.

Alternatives that lost: a task per request, a thousand of which take their steps in the same turn; a thread, whose
Python code keeps the loop from the interpreter for five milliseconds at a time, and makes tables need locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.room import Room, Rooms
from gantrymq.system.clock import monotonic, thread_time

#: A request's work; it returns what a handler would. Raises what a handler may raise.
Steps = Generator[None, None, Reply]

#: So long a turn of the loop is kept busy by requests that have just come, and as long again by those that wait, s.
TURN_S = 0.01
#: What may wait, of one connection and of all together (`Room`), bytes and requests. Java bounds its queue of sends by
#: 10,000 requests.
MAX_WAITING_BYTES_OF_ONE = 16 * 1024 * 1024
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_WAITING_OF_ONE = 5_000
MAX_WAITING = 20_000
#: So often it is looked whether peers that didn't take their answers have taken them, s.
_FULL_S = 0.05
#: What a waiting request takes beside its header and body, about, bytes.
_OVERHEAD = 2048


class _Waiting(NamedTuple):
    request: RemotingCommand
    steps: Steps
    size: int


class _Line:
    """The waiting requests of one connection."""

    __slots__ = ("requests", "room")

    def __init__(self, room: Room) -> None:
        self.requests: deque[_Waiting] = deque()
        self.room = room


class LongRequests:
    """Runs the steps of requests, and answers them."""

    def __init__(self, jobs: Jobs) -> None:
        self._loop = asyncio.get_running_loop()
        self._job = jobs.repeating("go on with long requests", self._go_on)
        #: The connection whose turn it is comes first.
        self._lines: dict[Connection, _Line] = {}
        self._rooms = Rooms(MAX_WAITING, MAX_WAITING_BYTES, MAX_WAITING_OF_ONE, MAX_WAITING_BYTES_OF_ONE)
        #: What requests that have just come took of this turn, s.
        self._used = 0.0
        self._stopped = False

    def __len__(self) -> int:
        return self._rooms.all.requests

    def start(self) -> None:
        self._stopped = False
        self._job.start()

    async def stop(self) -> None:
        """Ends those that wait; further ones are refused."""
        self._stopped = True
        self._job.cancel()
        while self._lines:
            self._go_on()
            await asyncio.sleep(0)

    def has_line(self, connection: Connection) -> bool:
        """Whether requests of this connection wait, and further ones would behind them."""
        return connection in self._lines

    def run(self, connection: Connection, request: RemotingCommand, steps: Steps) -> Reply:
        """A handler's reply: that of `steps` if they are done in time, else None, and it follows.

        Raises what the steps raise, and RequestRefused when too much waits.
        """
        if not self.has_line(connection) and self._used < TURN_S:
            if not self._used:
                self._loop.call_soon(self._turn_ended)
            left_s = TURN_S - self._used
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
        """A peer is gone, and what waited for it with it."""
        line = self._lines.pop(connection, None)
        if line is not None:
            for waiting in line.requests:
                line.room.give_back(waiting.size)
                waiting.steps.close()

    def _turn_ended(self) -> None:
        self._used = 0.0

    def _wait(self, connection: Connection, request: RemotingCommand, steps: Steps) -> None:
        line = self._lines.get(connection) or _Line(self._rooms.of(connection.address))
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._stopped or connection.is_closed or not line.room.take(size):
            steps.close()
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {len(self)} long requests wait",
            )
        line.requests.append(_Waiting(request, steps, size))
        self._lines[connection] = line
        self._job.wake()

    def _go_on(self) -> float | None:
        """A turn's share; each connection's first request does a step in turn."""
        now = monotonic()
        deadline = now + TURN_S
        full = 0
        while self._lines:
            cpu_began = thread_time()
            connection, line = next(iter(self._lines.items()))
            if connection.is_full and not self._stopped:
                # Further answers would only gather.
                self._lines[connection] = self._lines.pop(connection)
                full += 1
                if full >= len(self._lines):
                    return _FULL_S
                continue
            full = 0
            self._step(connection, line)
            now = monotonic()
            connection.charge(thread_time() - cpu_began)
            # It may be gone: the answer can't be written, or its steps have closed it.
            if self._lines.pop(connection, None) is not None and line.requests:
                self._lines[connection] = line
            if now >= deadline:
                break
        return 0.0 if self._lines else None

    def _step(self, connection: Connection, line: _Line) -> None:
        request, steps, size = line.requests[0]
        try:
            next(steps)
            return
        except StopIteration as end:
            reply: Reply = end.value
        except Exception as e:
            reply = error_response(e, request, connection.address)
        line.requests.popleft()
        line.room.give_back(size)
        if reply is not None:
            connection.reply(request, reply)
