"""A fair scheduler of requests. It limits the starts in one event-loop iteration, and alternates between addresses.

A request takes some milliseconds of processor time. Without the scheduler, a hundred connections of one address could
each start a request in the same iteration. Requests of other addresses would wait for all of them.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from gantrymq.console.connections import source_of
from gantrymq.fair_queue import FairQueue

REQUESTS_PER_ITERATION = 4


class RequestScheduler:
    """Middleware that starts requests, one client address after the other."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: FairQueue[str, asyncio.Future[None]] = FairQueue()
        self._left = REQUESTS_PER_ITERATION
        self._is_due = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            client = scope.get("client")
            await self._wait_for_slot(source_of(client[0]) if client else "")
        await self._app(scope, receive, send)

    async def _wait_for_slot(self, source: str) -> None:
        """Waits until a request of this source may start."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next_iteration)
        if self._left:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.add(source, turn)
        await turn

    def _next_iteration(self) -> None:
        """Starts waiting requests at the start of an event-loop iteration."""
        self._left = REQUESTS_PER_ITERATION
        while self._left and self._waiting:
            _, turn = self._waiting.take()
            if not turn.done():
                self._left -= 1
                turn.set_result(None)
        self._is_due = self._left < REQUESTS_PER_ITERATION
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next_iteration)
