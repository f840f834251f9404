"""Of simultaneous requests, only a few start at a time, and the addresses alternate."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from gantrymq.console.request_scheduler import REQUESTS_PER_ITERATION, RequestScheduler


async def receive() -> Message:
    return {"type": "http.request"}


async def send(message: Message) -> None:
    pass


class Requests:
    """Starts requests of several addresses, and records those that reach the application."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._turns = RequestScheduler(self._app)
        self._tasks: list[asyncio.Task[None]] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started.append(scope["client"][0])

    def begin(self, address: str) -> asyncio.Task[None]:
        scope = {"type": "http", "client": (address, 1)}
        self._tasks.append(asyncio.create_task(self._turns(scope, receive, send)))
        return self._tasks[-1]

    async def end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_few_start_in_one_iteration() -> None:
    requests, seen = Requests(), 0
    for _ in range(100):
        requests.begin("10.0.0.1")
    while seen < 100:
        await asyncio.sleep(0)
        assert len(requests.started) - seen <= REQUESTS_PER_ITERATION
        seen = len(requests.started)
    await requests.end()


async def test_addresses_take_turns() -> None:
    requests = Requests()
    for _ in range(100):
        requests.begin("10.0.0.1")
    await asyncio.sleep(0)
    visitor = requests.begin("10.0.0.2")
    await visitor
    assert len(requests.started) <= 4 * REQUESTS_PER_ITERATION
    await requests.end()


async def test_requests_that_are_cancelled_take_no_turn() -> None:
    requests = Requests()
    tasks = [requests.begin("10.0.0.1") for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks[REQUESTS_PER_ITERATION:]:
        task.cancel()
    await requests.end()
    assert len(requests.started) == REQUESTS_PER_ITERATION
    await requests.begin("10.0.0.1")
