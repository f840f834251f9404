"""`NameServerClient` requests topics, brokers and lost brokers from the NameServers of a cluster, with retries."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import Routes, read_queues
from gantrymq.errors import BrokerError, BrokerUnavailable, GantryError, NoRouteInfo, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import ClusterInfo, KVTable, TopicList
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.namesrv import (
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

T = TypeVar("T")

#: The namespace in which GantryMQ's NameServers record lost brokers by topic (namesrv/lost_brokers.py).
LOST_BROKERS_NAMESPACE = "LOST_BROKERS"
#: The namespace with the configuration of order topics (`NamesrvUtil`).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
#: Response codes of a server that is starting, stopping or overloaded.
BUSY = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
        ResponseCode.FLOW_CONTROL,
    }
)


FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
#: Errors that a retry can fix: no connection or response, a busy broker, no registered broker, no master.
PASSING = (RemotingError, BrokerError, NoRouteInfo, BrokerUnavailable)


class NoBrokers(BrokerUnavailable):
    """Raised if no broker has registered yet at a NameServer that has just started."""


class NameServerClient:
    """Sends requests to the NameServers of a cluster. Retries a request that fails for a temporary reason."""

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient, retry_timeout_ms: int) -> None:
        """Creates a client. After `retry_timeout_ms`, a request raises the error of its last attempt."""
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._remoting = remoting
        self._api = BrokerApi(remoting)
        self._routes = Routes(self._api, addresses)

    async def topics(self, *, wait: bool = True) -> list[str]:
        """Returns the topics of a NameServer, sorted.

        If there are no topics and `wait` is true, retries and finally raises NoBrokers.
        """

        async def attempt() -> list[str]:
            response = await self._request_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            topics = sorted(decode_json(response.body, TopicList).topic_list)
            if wait and not topics:
                raise NoBrokers(f"no broker has registered at {', '.join(self._routes.name_servers)}")
            return topics

        return await self.retry(attempt)

    async def brokers(self) -> set[str]:
        """Returns the names of all brokers that are registered at a NameServer."""
        response = await self.retry(lambda: self._request_name_server(RequestCode.GET_BROKER_CLUSTER_INFO))
        return set(decode_json(response.body, ClusterInfo).broker_addr_table)

    async def order_config(self, topic: str) -> str:
        """Returns the configuration "BROKER:QUEUES;..." of an order topic; empty for other topics.

        The configuration includes brokers that are down.
        """
        route = self._routes.cached(topic)
        if route is not None and route.order_topic_conf:
            return route.order_topic_conf
        # Routes contain the configuration only if the NameServer has orderMessageEnable=true.
        header = KVConfigRequestHeader(namespace=ORDER_TOPIC_NAMESPACE, key=topic)
        try:
            response = await self.retry(lambda: self._request_name_server(RequestCode.GET_KV_CONFIG, header))
        except BrokerError as e:
            if e.code in BUSY:
                raise
            return ""
        return response.read_header(GetKVConfigResponseHeader).value

    async def lost_brokers(self, topics: Sequence[str] | None) -> dict[str, set[str]]:
        """Returns {topic: brokers that any NameServer has recorded as lost}, for these topics or for all (None).

        NameServers of Apache record no lost brokers. Each NameServer gets one request without a retry. If no NameServer
        responds, raises a RemotingError, or the BrokerError of a busy NameServer.
        """
        lost: defaultdict[str, set[str]] = defaultdict(set)

        async def failure_of(name_server: str) -> RemotingError | BrokerError | None:
            try:
                await collect(name_server)
            except (RemotingError, BrokerError) as e:
                return e
            return None

        async def collect(name_server: str) -> None:
            if topics is None:
                listing = GetKVListByNamespaceRequestHeader(namespace=LOST_BROKERS_NAMESPACE)
                response = await self._kv(name_server, RequestCode.GET_KVLIST_BY_NAMESPACE, listing)
                found = {} if response is None else decode_json(response.body, KVTable).table
            else:
                responses = await request_each(
                    topics, lambda topic: self._kv(name_server, RequestCode.GET_KV_CONFIG, _lost_brokers_header(topic))
                )
                found = {
                    topic: of_topic.read_header(GetKVConfigResponseHeader).value
                    for topic, of_topic in zip(topics, responses, strict=True)
                    if of_topic is not None
                }
            for topic, names in found.items():
                lost[topic].update(filter(None, names.split(";")))

        failures = await asyncio.gather(*map(failure_of, self._routes.name_servers))
        if (failure := failures[0]) is not None and all(failures):
            raise failure
        return lost

    async def _kv(self, name_server: str, code: RequestCode, header: Header) -> RemotingCommand | None:
        """Sends a KV request; returns None if there is no entry or no permission.

        Raises a RemotingError, or the BrokerError of a busy NameServer.
        """
        try:
            return await self._remoting.call(name_server, RemotingCommand.request(code, header))
        except BrokerError as e:
            if e.code in BUSY:
                raise
            return None

    def awaited_brokers(self, topic: str) -> frozenset[str]:
        """Returns the brokers that the cached route of the topic lacks because the NameServers have just started."""
        return self._routes.awaited(topic)

    async def brokers_elsewhere(self, topic: str) -> dict[str, str]:
        """Returns {broker with queues of the topic: source}, from all NameServers and queue mappings.

        The route of one NameServer can lack a broker that is down. Another NameServer may still have this broker, and
        the queue mapping of a static topic (`TopicRouteData.topicQueueMappingByBroker`) includes it.
        """
        names: dict[str, str] = {}

        async def collect(name_server: str) -> None:
            try:
                route = await self._api.route(name_server, topic)
            except (RemotingError, BrokerError, NoRouteInfo):
                return
            for name, mapping in (route.topic_queue_mapping_by_broker or {}).items():
                if mapping.get("currIdMap"):
                    names[name] = "its table of queues"
            names.update((queue.broker_name, f"NameServer {name_server}") for queue in read_queues(topic, route))

        await asyncio.gather(*map(collect, self._routes.name_servers))
        return names

    async def _request_name_server(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """Queries the NameServers one after the other, and returns the first response."""
        name_servers = self._routes.name_servers
        for name_server in name_servers[:-1]:
            with suppress(RemotingError):
                return await self._remoting.call(name_server, RemotingCommand.request(code, header))
        return await self._remoting.call(name_servers[-1], RemotingCommand.request(code, header))

    # -- retries ------------------------------------------------------------------------------------------------

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        topic: str | None = None,
        passing: tuple[type[GantryError], ...] = PASSING,
    ) -> T:
        """Repeats `attempt` while it fails with errors of `passing`, and returns its result.

        Refreshes the route of `topic` after each failure. After the retry timeout, raises the last error.
        """
        deadline: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except passing as e:
                if isinstance(e, BrokerError) and e.code not in BUSY:
                    raise
                wait_s = pause_s
                if isinstance(e, BrokerError) and e.retry_after_ms is not None:
                    wait_s = e.retry_after_ms / 1000
                now = monotonic()
                if deadline is None:
                    deadline = now + self._retry_timeout_s
                    log.warning("retrying for %g s: %s", self._retry_timeout_s, e)
                if now + wait_s > deadline:
                    e.add_note(f"retried for {self._retry_timeout_s:g} s (option retryTimeoutMs)")
                    raise
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if topic is not None:
                await self._refresh(topic)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except NoRouteInfo:
            # The only broker of the topic is down. The client keeps the cached address until there is a new one.
            pass
        except GantryError as e:
            log.warning("can't refresh the route of topic %s: %s", topic, e)


def _lost_brokers_header(topic: str) -> KVConfigRequestHeader:
    return KVConfigRequestHeader(namespace=LOST_BROKERS_NAMESPACE, key=topic)
