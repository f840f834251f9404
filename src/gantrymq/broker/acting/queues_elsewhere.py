"""Which queues of a topic brokers of other names have, as NameServers say (`TopicRouteInfoManager`)."""

from __future__ import annotations

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

#: As clients ask, s.
_KNOWN_FOR_S = 30.0
#: A broker that took no message is asked last for so long, s.
_AVOIDED_S = 30.0
#: Topics of which the queues are remembered.
_MOST_TOPICS = 1000


class QueueElsewhere(NamedTuple):
    """Queue `queue_id` of the master of `broker_name` at host:port."""

    address: str
    broker_name: str
    queue_id: int


class QueuesElsewhere:
    """Those that the broker of `config` may write to, in turn."""

    def __init__(self, config: BrokerConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        #: Topic -> until when they are believed, and the queues.
        self._known: dict[str, tuple[float, list[QueueElsewhere]]] = {}
        #: host:port of brokers that took no message -> until when they are avoided.
        self._avoided: dict[str, float] = {}
        self._turns = count()

    async def next(self, topic: str) -> QueueElsewhere:
        """One of a broker that has taken messages of late, if there is one.

        Raises GantryError when no broker of another name has the topic.
        """
        until, queues = self._known.get(topic, (0.0, []))
        if until <= monotonic():
            queues = await self._ask(topic)
            if not queues:
                raise StoreError(f"no broker of another name takes messages for the topic {topic!r}")
            while len(self._known) >= _MOST_TOPICS:
                del self._known[next(iter(self._known))]
            self._known[topic] = monotonic() + _KNOWN_FOR_S, queues
        now = monotonic()
        good = [queue for queue in queues if self._avoided.get(queue.address, now) <= now] or queues
        return good[next(self._turns) % len(good)]

    def failed(self, topic: str, queue: QueueElsewhere) -> None:
        """The broker of this queue didn't take a message for the topic: it may be gone, or hang."""
        self._known.pop(topic, None)
        now = monotonic()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        self._avoided[queue.address] = now + _AVOIDED_S

    async def _ask(self, topic: str) -> list[QueueElsewhere]:
        problem: GantryError | None = None
        for name_server in self._config.namesrv_addr:
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

    def _queues(self, route: TopicRouteData) -> list[QueueElsewhere]:
        masters = {broker.broker_name: broker.master_address for broker in route.broker_datas}
        return [
            QueueElsewhere(address, queues.broker_name, queue_id)
            for queues in route.queue_datas
            if queues.perm & PERM_WRITE and queues.broker_name != self._config.broker_name
            for address in [masters.get(queues.broker_name)]
            if address
            for queue_id in range(queues.write_queue_nums)
        ]
