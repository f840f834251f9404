"""AdminBase: connections of AdminClient, requests to NameServers, and concurrent requests to several brokers.

Source: tools/admin/DefaultMQAdminExtImpl, tools/command/CommandUtil.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from gantrymq.background.shared_task import result_of
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.options import TransportOptions, duration, option, takes
from gantrymq.client.producing.producer import Producer
from gantrymq.client.routes import Routes
from gantrymq.errors import BrokerUnavailable, ClientError, GantryError, PartialFailure, RemotingError
from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.header import Header
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.name_server_discovery import split_addresses
from gantrymq.times import duration_ms

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminOptions(TransportOptions):
    """Options of `AdminClient`."""

    name_servers: Sequence[str] | str = option(
        (),
        "NameServers: a list of HOST:PORT, or one string with `;` between them. Requests to a broker by its address "
        "need none.",
    )
    _: KW_ONLY
    timeout: float | timedelta = duration(5.0, "Timeout of each request, in seconds.", minimum=0.001)


@dataclass(frozen=True, slots=True)
class AdminTransport:
    """Connections of an AdminClient. Other packages get this object from `transport_of`. It is not part of the API."""

    options: AdminOptions
    timeout_ms: int
    remoting: RemotingClient
    api: BrokerApi

    def producer(self, name_servers: Sequence[str], group: str, **options: Any) -> Producer:
        """Returns a producer with the same credentials, TLS and hooks."""
        return Producer(
            name_servers,
            group,
            ssl_context=self.options.ssl_context,
            credentials=self.options.credentials,
            hooks=self.options.hooks,
            **options,
        )


class AdminBase:
    """Connections and requests to NameServers and brokers."""

    @takes(AdminOptions)
    def __init__(self, options: AdminOptions) -> None:
        name_servers = options.name_servers
        if isinstance(name_servers, str):
            name_servers = split_addresses(name_servers)
        self._name_servers = list(name_servers)
        self._closing: asyncio.Future[None] | None = None
        self._options = options
        self._connect(RemotingClient(ssl_context=options.ssl_context, hooks=options.rpc_hooks))

    def _connect(self, remoting: RemotingClient) -> None:
        """Sends all requests with `remoting`."""
        api = BrokerApi(remoting)
        self._transport = AdminTransport(self._options, duration_ms("timeout", self._options.timeout), remoting, api)
        self._routes = Routes(api, self._name_servers) if self._name_servers else None

    async def close(self) -> None:
        """Closes the connections, even if the caller is cancelled. A second call has no effect."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._transport.remoting.close())
        await result_of(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def name_servers(self) -> list[str]:
        """HOST:PORT of each NameServer. Raises ClientError if there is no NameServer."""
        if not self._name_servers:
            raise ClientError("no NameServer given: pass at least one HOST:PORT")
        return list(self._name_servers)

    # -- the cluster --------------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """Returns all brokers and their clusters."""
        response = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_json(response.body, ClusterInfo)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Returns the topic's queues and brokers, requested from a NameServer. Raises NoRouteInfo."""
        if self._routes is None:
            raise ClientError(f"no NameServer given: one must say where topic {topic!r} is")
        return await self._routes.refresh(topic)

    async def brokers_of(self, cluster: str) -> list[BrokerData]:
        """Returns the cluster's brokers, sorted by name. Raises ClientError for an unknown cluster."""
        info = await self.cluster_info()
        names = info.cluster_addr_table.get(cluster)
        if names is None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ClientError(f"no cluster {cluster!r} at {';'.join(self.name_servers)}, which knows {known}")
        return [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]

    async def masters_of(self, cluster: str) -> list[str]:
        """Returns HOST:PORT of the cluster's masters, by broker name. Raises BrokerUnavailable if there is none."""
        masters = [broker.master_address for broker in await self.brokers_of(cluster)]
        found = [address for address in masters if address]
        if not found:
            raise BrokerUnavailable(f"cluster {cluster!r} has no master at the moment")
        return found

    async def broker_address(self, broker_name: str) -> str:
        """Returns HOST:PORT of the broker's master, or of a slave if there is no master. Raises ClientError."""
        broker = (await self.cluster_info()).broker_addr_table.get(broker_name)
        address = broker and any_address(broker)
        if not address:
            raise ClientError(f"no broker {broker_name!r} at {';'.join(self.name_servers)}")
        return address

    async def _targets(self, cluster: str | None, broker: str | None) -> list[str]:
        """Returns the address of `broker`, or those of the cluster's masters. Raises ClientError if both are None."""
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
        """Sends a request and returns a successful response. Raises BrokerError for any other, or a RemotingError."""
        request = RemotingCommand.request(code, header, body)
        return await self._transport.remoting.call(address, request, timeout_ms or self._transport.timeout_ms)

    async def _ask_name_server(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """Returns the response of the first reachable NameServer. All NameServers have the same data."""
        *others, last = self.name_servers
        for name_server in others:
            try:
                return await self._call(name_server, code, header)
            except RemotingError:
                continue
        return await self._call(last, code, header)

    async def _each(self, what: str, addresses: Iterable[str], request: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """Sends requests concurrently. Returns {address: result}.

        If some requests fail, raises PartialFailure. With only one address, raises the error of its request.
        """
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
    # The task creates the coroutine. If it is cancelled before its first step, it would never await a coroutine that
    # was passed in.
    try:
        return await request(address)
    except GantryError as e:
        return e


def transport_of(admin: AdminBase) -> AdminTransport:
    """Returns the connections of an AdminClient, for requests that its methods do not offer."""
    return admin._transport


def any_address(broker: BrokerData) -> str | None:
    """Returns HOST:PORT of the master, or of a slave if there is no master (`BrokerData.selectBrokerAddr`)."""
    return broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()), None)
