"""Limits of the console's concurrent requests.

A page of a large cluster queries every broker, and many browsers can open many pages. All requests of all users share
`RequestLimits`, which protect the brokers and the console. A hanging broker cannot use up the common limit, and its
circuit breaker ends the wait for its responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from gantrymq.background.tasks import Tasks
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.messages import MessageTrack
from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.console.circuit_breakers import PROBE_EVERY_S, SLOW_S, CircuitBreakers
from gantrymq.errors import ConnectFailed, RemotingError, RequestTimeout
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S, RpcHook
from gantrymq.system import tls
from gantrymq.system.clock import monotonic

#: Limits of the requests in flight: to all servers together, and to each server.
MAX_AT_ONCE = 32
MAX_AT_ONE_SERVER = 6
#: Largest number of pages and downloads with message bodies in memory, each up to 4 MiB.
MAX_BODIES = 16
#: If a request is cancelled after this share of its timeout, the server counts as not responding.
_NEARLY = 0.9


class RequestLimits:
    """The limits of one event loop. Several event loops can share `breakers`."""

    def __init__(
        self,
        at_once: int = MAX_AT_ONCE,
        at_one_server: int = MAX_AT_ONE_SERVER,
        breakers: CircuitBreakers | None = None,
    ) -> None:
        self.breakers = breakers or CircuitBreakers()
        self._all = asyncio.Semaphore(at_once)
        self._at_one_server = at_one_server
        self._by_server: dict[str, asyncio.Semaphore] = {}
        #: Semaphore that a caller holds while it has message bodies in memory.
        self.bodies = asyncio.Semaphore(MAX_BODIES)

    def semaphores(self, address: str) -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
        """Returns the semaphore of the server and that of all servers. Acquire them in this order."""
        of_server = self._by_server.get(address)
        if of_server is None:
            of_server = self._by_server[address] = asyncio.Semaphore(self._at_one_server)
        return of_server, self._all


class _LimitedRemoting(RemotingClient):
    """A RemotingClient within the limits, with circuit breakers for brokers."""

    def __init__(
        self,
        limits: RequestLimits,
        ssl_context: tls.SSLContext | None,
        hooks: Sequence[RpcHook],
        name_servers: Collection[str],
    ) -> None:
        super().__init__(ssl_context=ssl_context, hooks=hooks)
        self._limits = limits
        #: NameServers have no circuit breakers, because the console needs their responses for every page.
        self._name_servers = name_servers
        self._probes = Tasks("probe of a server")

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Sends a request within the limits. Fails at once while the server's circuit is open."""
        self._check_circuit(address)
        of_server, of_all = self._limits.semaphores(address)
        async with of_server, of_all:
            # The circuit may have opened during the wait.
            self._check_circuit(address)
            began = monotonic()
            try:
                return await super().invoke(address, request, timeout_ms)
            except (ConnectFailed, RequestTimeout) as e:
                self._failed(address, str(e), began, SLOW_S)
                raise
            except asyncio.CancelledError:
                # The caller cancelled the request. The reason may be its own timeout, which can be as long as the
                # request's.
                self._failed(address, f"no answer in {timeout_ms} ms", began, _NEARLY * timeout_ms / 1000)
                raise

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        await self._probes.stop()
        await super().close(timeout_s)

    def _failed(self, address: str, problem: str, began: float, least_s: float) -> None:
        """Opens the circuit of a broker that has not responded for at least `least_s`."""
        now = monotonic()
        if now - began >= least_s and address not in self._name_servers:
            self._limits.breakers.failed(address, problem, now)

    def _check_circuit(self, address: str) -> None:
        """Raises ConnectFailed while the circuit is open."""
        breakers = self._limits.breakers
        problem = breakers.problem(address)
        if problem is None:
            return
        if breakers.begins_probe(address, monotonic()):
            self._probes.start(self._probe(address))
        raise ConnectFailed(f"{address} didn't answer, and is queried again every {PROBE_EVERY_S:g} s", address)

    async def _probe(self, address: str) -> None:
        """Sends a request to a server, and reports whether it responds."""
        problem = "the probe was cancelled"
        try:
            # A response with any code shows that the server responds.
            await super().invoke(address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))
            problem = ""
        except RemotingError as e:
            problem = str(e)
        finally:
            if problem:
                self._limits.breakers.failed(address, problem, monotonic())
            else:
                self._limits.breakers.answered(address)


class LimitedAdmin(AdminClient):
    """An AdminClient whose requests stay within `limits`. The wait for the limits does not count in a timeout."""

    def __init__(
        self,
        name_servers: str,
        limits: RequestLimits,
        *,
        credentials: Credentials | None,
        ssl_context: tls.SSLContext | None,
        timeout_ms: int,
    ) -> None:
        super().__init__(name_servers, credentials=credentials, ssl_context=ssl_context, timeout=timeout_ms / 1000)
        self._connect(_LimitedRemoting(limits, ssl_context, rpc_hooks(credentials), self.name_servers))

    async def track(self, message: MessageExt, group: str) -> MessageTrack:
        """Returns the state of a message in one group. `message_track` would query all groups one after the other."""
        return await self._track(message, group)
