"""LimitedAdmin: an AdminClient that asks so many questions at once and no more.

A page of a large cluster asks every broker; many browsers ask for many pages. Brokers and the console itself are kept
from what that comes to: all questions of all users share `Limits`, and one broker that hangs can't take all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.messages import MessageTrack
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import Routes
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls

#: Questions under way, to all servers and to one.
MAX_AT_ONCE = 32
MAX_AT_ONE_SERVER = 6
#: Results with message bodies in memory, each up to 4 MiB.
MAX_BODIES = 16


class Limits:
    """The places that questions take, for one event loop."""

    def __init__(self, at_once: int = MAX_AT_ONCE, at_one_server: int = MAX_AT_ONE_SERVER) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._at_one_server = at_one_server
        self._by_server: dict[str, asyncio.Semaphore] = {}
        #: Held by a caller while it has message bodies in memory.
        self.bodies = asyncio.Semaphore(MAX_BODIES)

    def places(self, address: str) -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
        """Those of one server, to be taken first, and those of all."""
        of_server = self._by_server.get(address)
        if of_server is None:
            of_server = self._by_server[address] = asyncio.Semaphore(self._at_one_server)
        return of_server, self._all


class _LimitedRemoting(RemotingClient):
    def __init__(self, limits: Limits, ssl_context: tls.SSLContext | None, hooks: Sequence[RpcHook]) -> None:
        super().__init__(ssl_context=ssl_context, hooks=hooks)
        self._limits = limits

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        of_server, of_all = self._limits.places(address)
        async with of_server, of_all:
            return await super().invoke(address, request, timeout_ms)


class LimitedAdmin(AdminClient):
    """An AdminClient whose questions take places of `limits`; waiting for one is no part of a question's time."""

    def __init__(
        self,
        name_servers: str,
        limits: Limits,
        *,
        hooks: Sequence[RpcHook],
        ssl_context: tls.SSLContext | None,
        timeout_ms: int,
    ) -> None:
        super().__init__(name_servers, hooks=hooks, ssl_context=ssl_context, timeout_ms=timeout_ms)
        self.remoting = _LimitedRemoting(limits, ssl_context, hooks)
        self.api = BrokerApi(self.remoting)
        self._routes = Routes(self.api, self.name_servers)

    async def track(self, message: MessageExt, group: str) -> MessageTrack:
        """What became of the message in one group: `message_track` asks all, one after the other."""
        return await self._track(message, group)
