"""NameServers: what those of a cluster know of topics besides their routes, and of brokers that are away."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import Routes, read_queues
from gantrymq.errors import BrokerError, NoRouteInfo, RemotingError
from gantrymq.protocol.bodies.route import KVTable
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
from gantrymq.spark.of_each import of_each

#: Where GantryMQ's NameServers name brokers that are away, by topic (namesrv/lost_brokers.py).
LOST_BROKERS_NAMESPACE = "LOST_BROKERS"
#: Answers of a server that is starting, stopping or overloaded.
BUSY = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
        ResponseCode.FLOW_CONTROL,
    }
)


def _lost(topic: str) -> KVConfigRequestHeader:
    return KVConfigRequestHeader(namespace=LOST_BROKERS_NAMESPACE, key=topic)


class NameServers:
    """Asked without a second try: each may know what the others don't."""

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient) -> None:
        self._remoting = remoting
        self._api = BrokerApi(remoting)
        self._routes = Routes(self._api, addresses)

    async def lost_brokers(self, topics: Sequence[str] | None) -> dict[str, set[str]]:
        """By topic the brokers that any NameServer remembers to have lost, of these topics or of all.

        Apache's NameServers remember none, and one that has started since doesn't either. Raises a RemotingError, or a
        BrokerError of one that is busy, when none has answered.
        """
        lost: defaultdict[str, set[str]] = defaultdict(set)

        async def ask(name_server: str) -> RemotingError | BrokerError | None:
            try:
                await look(name_server)
            except (RemotingError, BrokerError) as e:
                return e
            return None

        async def look(name_server: str) -> None:
            if topics is None:
                listing = GetKVListByNamespaceRequestHeader(namespace=LOST_BROKERS_NAMESPACE)
                response = await self._kv(name_server, RequestCode.GET_KVLIST_BY_NAMESPACE, listing)
                found = {} if response is None else decode_json(response.body, KVTable).table
            else:
                answers = await of_each(
                    topics, lambda topic: self._kv(name_server, RequestCode.GET_KV_CONFIG, _lost(topic))
                )
                found = {
                    topic: answer.read_header(GetKVConfigResponseHeader).value
                    for topic, answer in zip(topics, answers, strict=True)
                    if answer is not None
                }
            for topic, names in found.items():
                lost[topic].update(filter(None, names.split(";")))

        failures = await asyncio.gather(*map(ask, self._routes.name_servers))
        if (failure := failures[0]) is not None and all(failures):
            raise failure
        return lost

    async def _kv(self, name_server: str, code: RequestCode, header: Header) -> RemotingCommand | None:
        """None where there is nothing, or nobody is told. Raises a RemotingError, or BrokerError when it is busy."""
        try:
            return await self._remoting.call(name_server, RemotingCommand.request(code, header))
        except BrokerError as e:
            if e.code in BUSY:
                raise
            return None

    def awaited_brokers(self, topic: str) -> frozenset[str]:
        """Brokers that are missing in the last route of the topic because the NameServers have just started."""
        return self._routes.awaited(topic)

    async def brokers_elsewhere(self, topic: str) -> dict[str, str]:
        """Brokers that the topic can be read from: {name: what says so}, a NameServer or its table of queues.

        More than its route may have: one NameServer may have lost a broker that another has, and of a static topic
        they keep which brokers have a part (`TopicRouteData.topicQueueMappingByBroker`), those that are away too.
        """
        names: dict[str, str] = {}

        async def ask(name_server: str) -> None:
            try:
                route = await self._api.route(name_server, topic)
            except (RemotingError, BrokerError, NoRouteInfo):
                return
            for name, mapping in (route.topic_queue_mapping_by_broker or {}).items():
                if mapping.get("currIdMap"):
                    names[name] = "its table of queues"
            names.update((queue.broker_name, f"NameServer {name_server}") for queue in read_queues(topic, route))

        await asyncio.gather(*map(ask, self._routes.name_servers))
        return names

    async def _ask_name_server(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """The answer of the first one that gives one."""
        name_servers = self._routes.name_servers
        for name_server in name_servers[:-1]:
            with suppress(RemotingError):
                return await self._remoting.call(name_server, RemotingCommand.request(code, header))
        return await self._remoting.call(name_servers[-1], RemotingCommand.request(code, header))
