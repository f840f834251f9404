"""Lifecycle: how a client is started and closed, whoever is cancelled meanwhile.

A producer or consumer consists of parts: connections, heartbeats, queues. They are entered on an AsyncExitStack as
they are made; a start that fails or is cancelled unwinds it. A close runs in a task of its own, which every call
awaits: a caller that is cancelled, or has no time left, leaves no part behind, for the task goes on. Parts are
forgotten when they are closed, not before. A client that is closed may be started again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from math import inf
from types import TracebackType
from typing import Self

from gantrymq.background.shared import result_of
from gantrymq.errors import ClientClosed, ClientError
from gantrymq.logs import peer_log

log = peer_log(__name__)

#: How long a close takes at most, if nothing else is said: for handlers, and for what is still to be sent.
CLOSE_TIMEOUT_S = 10.0
#: Each part that has something to say to a server gets so much time at least, even when nothing is left of the close's.
FAREWELL_S = 0.2


class Deadline:
    """When a close should be over. Times are those of the loop."""

    def __init__(self) -> None:
        self._at = inf

    def set(self, timeout_s: float) -> None:
        self._at = asyncio.get_running_loop().time() + timeout_s

    def left(self) -> float:
        """Seconds; FAREWELL_S at least."""
        return max(self._at - asyncio.get_running_loop().time(), FAREWELL_S)


class Lifecycle(ABC):
    """Started by `async with` or `start`, ended by `close`."""

    def __init__(self) -> None:
        self._deadline = Deadline()
        self._stack: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Held while parts are made or closed.
        self._changing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Makes the parts; enters on `stack` what closes them, which goes on to the next whatever one raises."""

    async def start(self) -> None:
        """Makes the client ready. Raises ClientError if it is started already, or for odd options."""
        if self._stack is not None:
            raise ClientError("this client is already started")
        self._stack = stack = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        try:
            async with self._changing:
                await self._open(stack)
                self._is_open = self._closing is None
        except BaseException:
            await self.close(0.0)
            raise

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Ends the client, after what is under way or after `timeout_s`; once more does no harm.

        It goes on when the caller is cancelled. Whoever calls it meanwhile waits for the same end.
        """
        if self._stack is None:
            return
        if self._closing is None:
            self._check_loop()
            self._is_open = False
            self._deadline.set(timeout_s)
            self._closing = asyncio.get_running_loop().create_task(self._close(self._stack))
            # Its error is in the log, if all who waited for it have gone.
            self._closing.add_done_callback(lambda closing: closing.cancelled() or closing.exception())
        await result_of(self._closing)

    async def _close(self, stack: AsyncExitStack) -> None:
        try:
            async with self._changing:
                await stack.aclose()
        except Exception as e:
            log.exception("closing a %s: %s", type(self).__name__, e)
            raise
        finally:
            self._stack = self._closing = None

    def _check_open(self) -> None:
        """Raises ClientClosed before the start and from the close on; ClientError in another event loop."""
        if not self._is_open:
            raise ClientClosed(f"this {type(self).__name__} is not started, or closed: use it inside `async with`")
        self._check_loop()

    def _check_loop(self) -> None:
        # Nothing is sent by half: the connections are another loop's.
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(f"this {type(self).__name__} was started in another event loop, and works there alone")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
