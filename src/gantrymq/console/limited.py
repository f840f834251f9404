"""LimitedAdmin: an AdminClient that asks so many questions at once and no more.

A page of a large cluster asks every broker; many browsers ask for many pages. Brokers and the console itself are kept
from what that comes to: all questions of all users share `Limits`, and one broker that hangs can't take all of them. A
circuit breaker ends the waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from gantrymq.background.tasks import Tasks
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.messages import MessageTrack
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import Routes
from gantrymq.console.circuit_breakers import PROBE_EVERY_S, SLOW_S, CircuitBreakers
from gantrymq.errors import ConnectFailed, RemotingError, RequestTimeout
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S, RpcHook
from gantrymq.system import tls
from gantrymq.system.clock import monotonic

#: Questions under way, to all servers and to one.
MAX_AT_ONCE = 32
MAX_AT_ONE_SERVER = 6
#: Results with message bodies in memory, each up to 4 MiB.
MAX_BODIES = 16
#: A request that is cancelled after so much of its time had no answer.
_NEARLY = 0.9


class Limits:
    """The places that questions take, for one event loop. `breakers` may be those of another one, too."""

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
        #: Held by a caller while it has message bodies in memory.
        self.bodies = asyncio.Semaphore(MAX_BODIES)

    def places(self, address: str) -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
        """Those of one server, to be taken first, and those of all."""
        of_server = self._by_server.get(address)
        if of_server is None:
            of_server = self._by_server[address] = asyncio.Semaphore(self._at_one_server)
        return of_server, self._all


class _LimitedRemoting(RemotingClient):
    def __init__(
        self,
        limits: Limits,
        ssl_context: tls.SSLContext | None,
        hooks: Sequence[RpcHook],
        name_servers: Collection[str],
    ) -> None:
        super().__init__(ssl_context=ssl_context, hooks=hooks)
        self._limits = limits
        #: They have no circuit breakers: without them there is nothing to show.
        self._name_servers = name_servers
        self._probes = Tasks("a query whether a server answers again")

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Fails at once while the server's circuit is open."""
        self._check_circuit(address)
        of_server, of_all = self._limits.places(address)
        async with of_server, of_all:
            # It may have opened while this waited.
            self._check_circuit(address)
            began = monotonic()
            try:
                return await super().invoke(address, request, timeout_ms)
            except (ConnectFailed, RequestTimeout) as e:
                self._failed(address, str(e), began, SLOW_S)
                raise
            except asyncio.CancelledError:
                # The caller's time is over, which may be the same as the request's.
                self._failed(address, f"no answer in {timeout_ms} ms", began, _NEARLY * timeout_ms / 1000)
                raise

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        await self._probes.stop()
        await super().close(timeout_s)

    def _failed(self, address: str, problem: str, began: float, least_s: float) -> None:
        """Opens the circuit of a broker that hasn't answered for `least_s`."""
        now = monotonic()
        if now - began >= least_s and address not in self._name_servers:
            self._limits.breakers.failed(address, problem, now)

    def _check_circuit(self, address: str) -> None:
        """Raises ConnectFailed while it is open."""
        breakers = self._limits.breakers
        problem = breakers.problem(address)
        if problem is None:
            return
        if breakers.begins_probe(address, monotonic()):
            self._probes.start(self._probe(address))
        raise ConnectFailed(f"{address} didn't answer, and is queried again every {PROBE_EVERY_S:g} s", address)

    async def _probe(self, address: str) -> None:
        problem = "the probe was given up"
        try:
            # Any answer will do, whatever its code.
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
        self.remoting = _LimitedRemoting(limits, ssl_context, hooks, self.name_servers)
        self.api = BrokerApi(self.remoting)
        self._routes = Routes(self.api, self.name_servers)

    async def track(self, message: MessageExt, group: str) -> MessageTrack:
        """What became of the message in one group: `message_track` asks all, one after the other."""
        return await self._track(message, group)
