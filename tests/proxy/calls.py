"""RecordedCall: an rpc without a network that records the responses of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from gantrymq.proxy.call import CLIENT_ID, CLIENT_VERSION, LANGUAGE


class RecordedCall:
    """Replaces the server's own call: unary, or a stream of either kind.

    `send` adds a message of the client's stream, and `finish` ends the stream. After `cancel_at` responses, `write`
    fails as for a client that has disconnected.
    """

    def __init__(
        self,
        method: str = "Test",
        *,
        client_id: str = "client-1",
        user: str = "",
        connection: object = None,
        silent_s: float = 0.0,
        remaining_ms: int = 30_000,
        version: str = "5.0.8",
        cancel_at: int | None = None,
    ) -> None:
        self.method = method
        self.peer = "127.0.0.1:50000"
        self.local_address = "127.0.0.1:8081"
        self.metadata: Mapping[str, str] = {CLIENT_ID: client_id, LANGUAGE: "JAVA", CLIENT_VERSION: version}
        self.client_id = client_id
        self.user = user
        self.connection = connection
        self.silent_s = silent_s
        self.written: list[Any] = []
        self.is_over = False
        self._remaining_ms = remaining_ms
        self._cancel_at = cancel_at
        self._requests: asyncio.Queue[Message | None] = asyncio.Queue()
        self._callbacks: list[Callable[[], None]] = []

    def remaining_ms(self) -> int:
        return self._remaining_ms

    def when_over(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def keep(self, size: int) -> None:
        pass

    async def next_slice(self) -> None:
        await asyncio.sleep(0)

    async def write(self, response: Message) -> None:
        if self._cancel_at is not None and len(self.written) >= self._cancel_at:
            self.is_over = True
            raise asyncio.CancelledError
        self.written.append(response)

    def write_soon(self, response: Message) -> None:
        self.written.append(response)

    def send(self, request: Message) -> None:
        self._requests.put_nowait(request)

    def finish(self) -> None:
        self._requests.put_nowait(None)

    async def requests(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request
