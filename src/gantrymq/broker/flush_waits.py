"""Answers to sends that wait until the disk has the message (SYNC_FLUSH), at most syncFlushTimeout.

Then FLUSH_DISK_TIMEOUT says that the message is stored, but may not outlive a power failure
(`CommitLog.GroupCommitService`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection
from gantrymq.store.message_store import MessageStore


class _Waiting:
    """One answer; `reply` is None once it was given."""

    __slots__ = ("connection", "deadline", "reply", "request")

    def __init__(
        self, connection: Connection, request: RemotingCommand, reply: RemotingCommand | tuple[bytes], deadline: float
    ) -> None:
        self.connection = connection
        self.request = request
        self.reply: RemotingCommand | tuple[bytes] | None = reply
        self.deadline = deadline


class FlushWaits(Part):
    """The answers of one broker, `capacity` at most; all wait equally long, so one job looks at the oldest."""

    def __init__(self, store: MessageStore, capacity: int, jobs: Jobs) -> None:
        self._store = store
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._expiring = jobs.repeating("answer sends that the disk keeps waiting", self._expire)
        #: Done when nobody waits any more.
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        self._expiring.start()

    async def stop(self) -> None:
        """Waits until all are answered: what is stored is flushed now, or the time of each is up."""
        await self._idle.wait()
        self._expiring.cancel()

    @property
    def is_full(self) -> bool:
        """The disk is so far behind that no more messages should be taken."""
        return len(self._waiting) >= self._capacity

    def reply(
        self, connection: Connection, request: RemotingCommand, end: int, reply: RemotingCommand | tuple[bytes]
    ) -> None:
        """Gives the answer (a command or an encoded frame) when the log is on the disk up to `end`."""
        timeout_s = self._store.config.sync_flush_timeout_ms / 1000
        deadline = self._loop.time() + timeout_s
        # Its message is stored: thousands that wait mustn't keep theirs in memory.
        waiting = _Waiting(connection, request.without_content(), reply, deadline)
        # It raises when the store is closed; the answer comes in a later turn.
        self._store.when_flushed(end, partial(self._flushed, waiting))
        if not self._waiting:
            self._idle.clear()
            self._expiring.wake(timeout_s)
        self._waiting.append(waiting)

    def _flushed(self, waiting: _Waiting, error: Exception | None) -> None:
        # Called in the flusher's thread.
        self._loop.call_soon_threadsafe(self._answer, waiting, error)

    def _answer(self, waiting: _Waiting, error: Exception | None) -> None:
        reply, waiting.reply = waiting.reply, None
        if reply is not None:
            request, connection = waiting.request, waiting.connection
            connection.reply(request, reply if error is None else error_response(error, request, connection.address))
        while self._waiting and self._waiting[0].reply is None:
            self._waiting.popleft()
        if not self._waiting:
            self._idle.set()

    def _expire(self) -> float | None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            waiting = self._waiting.popleft()
            reply, waiting.reply = waiting.reply, None
            if reply is not None:
                waiting.connection.reply(waiting.request, _timed_out(reply))
        if self._waiting:
            return self._waiting[0].deadline - now
        self._idle.set()
        return None


def _timed_out(reply: RemotingCommand | tuple[bytes]) -> RemotingCommand:
    """The same answer with the code that says what hasn't happened yet."""
    if not isinstance(reply, RemotingCommand):
        [reply] = FrameReader().feed(reply[0])
    reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return reply
