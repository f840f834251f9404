"""Lifecycle: start and close of a client, safe against cancellation.

A client consists of parts: connections, heartbeats, queues. Each part is entered on an AsyncExitStack. A start that
fails or is cancelled unwinds the stack. A close runs in its own task, which all callers await. The task continues after
a caller is cancelled or times out, so that no part stays open. References to parts are dropped after they are closed. A
closed client can be started again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import Self

from gantrymq.background.shared_task import result_of
from gantrymq.errors import ClientClosed, ClientError
from gantrymq.logs import peer_log
from gantrymq.times import duration_s

log = peer_log(__name__)

#: Default time limit of a close, for running handlers and pending sends, s.
CLOSE_TIMEOUT_S = 10.0
#: Minimum time for the last requests of each part to a server, even after the time limit of the close, s.
FAREWELL_S = 0.2


class Deadline:
    """End of a close, in loop time."""

    def __init__(self) -> None:
        self._at = inf

    def set(self, timeout_s: float) -> None:
        self._at = asyncio.get_running_loop().time() + timeout_s

    def left(self) -> float:
        """Returns the remaining seconds, at least FAREWELL_S."""
        return max(self._at - asyncio.get_running_loop().time(), FAREWELL_S)


class Lifecycle(ABC):
    """Base of clients. Started by `async with` or `start`, ended by `close`."""

    def __init__(self) -> None:
        self._deadline = Deadline()
        self._stack: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Locked while parts are created or closed.
        self._changing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Creates the parts and enters their close functions on `stack`. All of these run, even if one raises."""

    async def start(self) -> None:
        """Starts the client.

        Raises:
            ClientError: It is already started, or options are invalid.
        """
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
            await self.close(timeout=0.0)
            raise

    async def close(self, *, timeout: float | timedelta = CLOSE_TIMEOUT_S) -> None:
        """Closes the client after pending work is done. A second call has no effect.

        The close continues if the caller is cancelled. Concurrent calls wait for the same close.

        Args:
            timeout: Longest wait for pending work, in seconds or as a timedelta. Default: 10.0.
        """
        timeout_s = duration_s("timeout", timeout)
        if self._stack is None:
            return
        if self._closing is None:
            self._check_loop()
            self._is_open = False
            self._deadline.set(timeout_s)
            self._closing = asyncio.get_running_loop().create_task(self._close(self._stack))
            # If all callers were cancelled, no other code retrieves the error. `_close` has logged it.
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
        """Raises ClientClosed before the start and after the close, and ClientError in another event loop."""
        if not self._is_open:
            raise ClientClosed(f"this {type(self).__name__} is not started, or closed: use it inside `async with`")
        # The comparison of `_check_loop`, without a call for each message.
        if self._loop is not asyncio.get_running_loop():
            self._check_loop()

    def _check_loop(self) -> None:
        # The connections belong to the other event loop, so fail before anything is sent.
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(f"this {type(self).__name__} was started in another event loop, and works there alone")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
