"""AdminBase: what all of AdminClient's parts stand on: connections, the NameServers, many brokers at once.

Source: tools/admin/DefaultMQAdminExtImpl, tools/command/CommandUtil.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from gantrymq.background.shared import result_of
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import Routes
from gantrymq.errors import BrokerUnavailable, ClientError, GantryError, PartialFailure, RemotingError
from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.header import Header
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls

T = TypeVar("T")

#: DefaultMQAdminExt's timeoutMillis.
TIMEOUT_MS = 5000


class AdminBase:
    """Connections to NameServers and brokers, and how they are asked."""

    def __init__(
        self,
        name_servers: Sequence[str] | str = (),
        *,
        hooks: Sequence[RpcHook] = (),
        ssl_context: tls.SSLContext | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        if isinstance(name_servers, str):
            name_servers = [address.strip() for address in name_servers.split(";") if address.strip()]
        self.timeout_ms = timeout_ms
        self.hooks = hooks
        self.ssl_context = ssl_context
        self.remoting = RemotingClient(ssl_context=ssl_context, hooks=hooks)
        self.api = BrokerApi(self.remoting)
        self._name_servers = list(name_servers)
        self._closing: asyncio.Future[None] | None = None
        self._routes = Routes(self.api, name_servers) if name_servers else None

    async def close(self) -> None:
        """Closes the connections, also when the caller is cancelled; once more does no harm."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.remoting.close())
        await result_of(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def name_servers(self) -> list[str]:
        """host:port of each NameServer. Raises ClientError when none was given: requests to a broker need none."""
        if not self._name_servers:
            raise ClientError("no NameServer given: pass at least one HOST:PORT")
        return self._name_servers

    # -- the cluster --------------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """All brokers, and the clusters that they make."""
        response = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_json(response.body, ClusterInfo)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The topic's queues and brokers, as a NameServer has them now. Raises NoRouteInfo."""
        if self._routes is None:
            raise ClientError(f"no NameServer given: one must say where topic {topic!r} is")
        return await self._routes.refresh(topic)

    async def brokers_of(self, cluster: str) -> list[BrokerData]:
        """The cluster's brokers, sorted by name. Raises ClientError for an unknown cluster."""
        info = await self.cluster_info()
        names = info.cluster_addr_table.get(cluster)
        if names is None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ClientError(f"no cluster {cluster!r} at {';'.join(self.name_servers)}, which knows {known}")
        return [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]

    async def masters_of(self, cluster: str) -> list[str]:
        """host:port of the cluster's masters, by broker name. Raises BrokerUnavailable if there is none."""
        masters = [broker.master_address for broker in await self.brokers_of(cluster)]
        found = [address for address in masters if address]
        if not found:
            raise BrokerUnavailable(f"cluster {cluster!r} has no master at the moment")
        return found

    async def broker_address(self, broker_name: str) -> str:
        """host:port of the broker's master, or of a slave while it has none. Raises ClientError."""
        broker = (await self.cluster_info()).broker_addr_table.get(broker_name)
        address = broker and any_address(broker)
        if not address:
            raise ClientError(f"no broker {broker_name!r} at {';'.join(self.name_servers)}")
        return address

    async def _targets(self, cluster: str | None, broker: str | None) -> list[str]:
        """The one address, or the cluster's masters."""
        if (cluster is None) == (broker is None):
            raise ClientError("either a cluster or a broker's address is needed")
        return [broker] if broker is not None else await self.masters_of(cluster or "")

    # -- requests -----------------------------------------------------------------------------------------------

    async def _call(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """A server's answer. Raises BrokerError unless it is SUCCESS, or a RemotingError."""
        request = RemotingCommand.request(code, header, body)
        return await self.remoting.call(address, request, timeout_ms or self.timeout_ms)

    async def _ask_name_server(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """The answer of the first NameServer that can be reached: they all know the same."""
        *others, last = self.name_servers
        for name_server in others:
            try:
                return await self._call(name_server, code, header)
            except RemotingError:
                continue
        return await self._call(last, code, header)

    async def _each(self, what: str, addresses: Iterable[str], request: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """{address: what it answered}, asked all at once. Raises PartialFailure, or a lone server's own error."""
        addresses = list(dict.fromkeys(addresses))
        if len(addresses) == 1:
            return {addresses[0]: await request(addresses[0])}
        answers = await asyncio.gather(*(_caught(request, address) for address in addresses))
        failed = {a: e for a, e in zip(addresses, answers, strict=True) if isinstance(e, GantryError)}
        done = {a: e for a, e in zip(addresses, answers, strict=True) if not isinstance(e, GantryError)}
        if failed:
            raise PartialFailure(what, list(done), failed)
        return done


async def _caught(request: Callable[[str], Awaitable[T]], address: str) -> T | GantryError:
    # The request is made here: who is cancelled before the first step would leave it unawaited.
    try:
        return await request(address)
    except GantryError as e:
        return e


def any_address(broker: BrokerData) -> str | None:
    """The master's host:port, or a slave's while there is no master (`BrokerData.selectBrokerAddr`)."""
    return broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()), None)
