"""Caches the queues of each topic on brokers of other names (`TopicRouteInfoManager`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from itertools import count
from typing import NamedTuple

from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import GantryError, StoreError
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_WRITE
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import GetRouteInfoRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import monotonic

#: How long a route is cached, in seconds. Clients use the same interval.
_KNOWN_FOR_S = 30.0
#: How long a broker is avoided after it failed to accept a message, in seconds.
_AVOIDED_S = 30.0
_MOST_TOPICS = 1000


class RemoteQueue(NamedTuple):
    """Queue `queue_id` at the master of `broker_name`; `address` is its host:port."""

    address: str
    broker_name: str
    queue_id: int


class TopicRouteInfo:
    """Selects a queue of another broker for each message, in rotation."""

    def __init__(self, config: BrokerConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        #: Queues by topic, each with the time at which the entry expires.
        self._known: OrderedDict[str, tuple[float, list[RemoteQueue]]] = OrderedDict()
        #: host:port of each broker that failed to accept a message -> end of the time for which it is avoided.
        self._avoided: dict[str, float] = {}
        self._turns = count()

    async def next(self, topic: str, asked: Collection[str]) -> RemoteQueue | None:
        """Returns the next queue for a topic, preferably at a broker that did not fail recently.

        Returns None if all brokers with the topic are in `asked`, which has host:port of each broker.

        Raises GantryError if no broker of another name has the topic.
        """
        until, queues = self._known.get(topic, (0.0, []))
        if until <= monotonic():
            queues = await self._ask(topic)
            if not queues:
                raise StoreError(f"no broker of another name takes messages for the topic {topic!r}")
            while len(self._known) >= _MOST_TOPICS:
                self._known.popitem(last=False)
            self._known[topic] = monotonic() + _KNOWN_FOR_S, queues
        now = monotonic()
        left = [queue for queue in queues if queue.address not in asked]
        good = [queue for queue in left if self._avoided.get(queue.address, now) <= now] or left
        return good[next(self._turns) % len(good)] if good else None

    def failed(self, topic: str, queue: RemoteQueue) -> None:
        """Records that a queue's broker rejected a message: avoids it for some time, and queries the route again."""
        self._known.pop(topic, None)
        now = monotonic()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        self._avoided[queue.address] = now + _AVOIDED_S

    async def _ask(self, topic: str) -> list[RemoteQueue]:
        problem: GantryError | None = None
        for name_server in self._config.name_servers:
            header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
            request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            try:
                answer = await self._remoting.call(name_server, request)
                return self._queues(decode_json(answer.body, TopicRouteData))
            except GantryError as e:
                problem = problem or e
        if problem is not None:
            raise problem
        return []

    def _queues(self, route: TopicRouteData) -> list[RemoteQueue]:
        masters = {broker.broker_name: broker.master_address for broker in route.broker_datas}
        return [
            RemoteQueue(address, queues.broker_name, queue_id)
            for queues in route.queue_datas
            if queues.perm & PERM_WRITE and queues.broker_name != self._config.broker_name
            for address in [masters.get(queues.broker_name)]
            if address
            for queue_id in range(queues.write_queue_nums)
        ]
