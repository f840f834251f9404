"""QUERY_ASSIGNMENT: the broker assigns queues to clients that do not rebalance themselves.

The response lists the queues of one client, and whether it pops or pulls them. The route with the queues of all brokers
comes from a NameServer and is cached for 30 s. Sources: `QueryAssignmentProcessor`, `TopicRouteInfoManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import BrokerError, GantryError, RouteNotReady
from gantrymq.logs import peer_log
from gantrymq.protocol.awaited_brokers import awaited_brokers
from gantrymq.protocol.bodies.heartbeat import BROADCASTING
from gantrymq.protocol.bodies.pop import (
    MODE_POP,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    QueueAssignment,
    RequestMode,
)
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, decode_request_json, encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.tls import client_context

log = peer_log(__name__)

#: Age at which a route is queried again, in seconds (loadBalancePollNameServerInterval).
_ROUTE_AGE_S = 30.0
#: Timeout of a route query, in ms.
_ROUTE_TIMEOUT_MS = 3000
#: Largest number of cached routes. At the limit, the cache is cleared.
_MAX_ROUTES = 10_000


class Assignments(Feature):
    """Assigns queues to the clients of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._members = context.members
        self._modes = context.request_modes
        self._remoting = RemotingClient(ssl_context=client_context(context.config))
        self._loop = asyncio.get_running_loop()
        #: Topic -> (time of the query, its readable queues). The queues are None if the topic does not exist.
        self._routes: dict[str, tuple[float, list[MessageQueue] | None]] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.QUERY_ASSIGNMENT: self.query}

    async def stop(self) -> None:
        await self._remoting.close()

    def query(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles QUERY_ASSIGNMENT. A response without assignments means that the client keeps its queues."""
        body = decode_request_json(request.body, QueryAssignmentRequestBody)
        known = self._routes.get(body.topic)
        if known is not None and self._loop.time() - known[0] < _ROUTE_AGE_S:
            return self._answer(body, known[1])
        connection.respond_with(request, self._ask(body))
        return None

    async def _ask(self, body: QueryAssignmentRequestBody) -> RemotingCommand:
        try:
            queues = await self._queues(body.topic)
        except RouteNotReady as e:
            log.info("group %s keeps its queues of topic %s for now: %s", body.consumer_group, body.topic, e)
            queues = None
        if queues is not None:
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            self._routes[body.topic] = self._loop.time(), queues
        return self._answer(body, queues)

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """Returns the queues of a topic from the first NameServer with a complete route; None for an unknown topic.

        If no NameServer has a complete route, raises the last NameServer's error: RouteNotReady if some brokers of the
        topic have not registered yet, or another GantryError.
        """
        problem: GantryError | None = None
        for address in self._config.name_servers:
            request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
            try:
                response = await self._remoting.call(address, request, _ROUTE_TIMEOUT_MS)
            except BrokerError as e:
                if e.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                problem = e
            except GantryError as e:
                problem = e
            else:
                if awaited_brokers(response):
                    problem = RouteNotReady(topic, [address], awaited_brokers(response))
                    continue
                route = decode_json(response.body, TopicRouteData)
                return [
                    MessageQueue(topic, data.broker_name, queue_id)
                    for data in route.queue_datas
                    if data.perm & PERM_READ
                    for queue_id in range(data.read_queue_nums)
                ]
        if problem is not None:
            raise problem
        return None

    def _answer(self, body: QueryAssignmentRequestBody, queues: list[MessageQueue] | None) -> RemotingCommand:
        mode = self._modes.find(body.topic, body.consumer_group)
        mine = None if queues is None else self._allocate(body, mode, queues)
        assignments = (
            None
            if mine is None
            else [QueueAssignment(QueueObject.of(queue), mode.mode) for queue in dict.fromkeys(mine)]
        )
        return RemotingCommand.response(body=encode_json(QueryAssignmentResponseBody(assignments)))

    def _allocate(
        self, body: QueryAssignmentRequestBody, mode: RequestMode, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        if body.message_model == BROADCASTING or not self._config.server_load_balancer_enable:
            return queues
        group = self._members.consumers.get(body.consumer_group)
        if group is None:
            return None
        return allocate(body.client_id, group.client_ids(), queues, mode, body.strategy_name)


def allocate(
    client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue], mode: RequestMode, strategy: str
) -> list[MessageQueue] | None:
    """Returns the queues of one client; None for an unknown strategy.

    Clients that pull get disjoint parts of the queues. Clients that pop share queues:
    - If `pop_share_queue_num` is 0, or at least the number of other clients, each client gets all queues of each broker
      (queue id -1).
    - Otherwise a client gets its own part and the parts of the next `pop_share_queue_num` clients. If there are more
      clients than queues, each client gets one queue.
    """
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        return None
    clients, ordered = sorted(client_ids), sorted(queues)
    share = mode.pop_share_queue_num
    if mode.mode == MODE_POP and (share <= 0 or share >= len(clients) - 1):
        return [MessageQueue(queue.topic, queue.broker_name, -1) for queue in ordered]
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if mode.mode != MODE_POP:
        return _part(ordered, index, len(clients), strategy)
    if len(clients) > len(ordered):
        return [ordered[index % len(ordered)]] if ordered else []
    return [
        queue
        for step in range(share + 1)
        for queue in _part(ordered, (index + step) % len(clients), len(clients), strategy)
    ]


def _part(queues: list[MessageQueue], index: int, count: int, strategy: str) -> list[MessageQueue]:
    """Returns the part of the client `index` of `count` (`AllocateMessageQueueAveragely`, `..ByCircle`)."""
    if strategy == "AVG_BY_CIRCLE":
        return queues[index::count]
    size, rest = divmod(len(queues), count)
    start = index * size + min(index, rest)
    return queues[start : start + size + (index < rest)]
