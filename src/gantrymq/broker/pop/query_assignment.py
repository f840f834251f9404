"""QUERY_ASSIGNMENT: the broker says which queues a client has, and whether it pops or pulls them.

(`QueryAssignmentProcessor`, `TopicRouteInfoManager`.) For clients without a rebalance of their own. The queues are
those of all brokers, as a NameServer knows them; a route is asked for again after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.part import Part
from gantrymq.broker.pop.message_request_mode import MessageRequestModes
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

#: loadBalancePollNameServerInterval and the patience with a NameServer.
_ROUTE_AGE_S = 30.0
_ROUTE_TIMEOUT_MS = 3000
_MAX_ROUTES = 10_000


class Assignments(Part):
    """The assignments that one broker makes."""

    def __init__(self, config: BrokerConfig, members: GroupMembers[Connection], modes: MessageRequestModes) -> None:
        self._config = config
        self._members = members
        self._modes = modes
        self._remoting = RemotingClient(ssl_context=client_context(config))
        self._loop = asyncio.get_running_loop()
        #: Topic -> (when it was asked for, all queues that can be read, None for an unknown topic).
        self._routes: dict[str, tuple[float, list[MessageQueue] | None]] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.QUERY_ASSIGNMENT: self.query}

    async def stop(self) -> None:
        await self._remoting.close()

    def query(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers without assignments where the client should keep what it has."""
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
        """The queues of a topic from the first NameServer with a complete route; None if it has no such topic.

        Raises GantryError, and RouteNotReady while every NameServer awaits brokers of the topic.
        """
        problem: GantryError | None = None
        for address in self._config.namesrv_addr:
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
    """One client's queues, None for an unknown strategy.

    Who pops shares all queues of a broker (queue id -1), or with `pop_share_queue_num` n those of the n clients behind
    it; with more clients than queues each has one.
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
    """The share of the index-th of `count` clients (`AllocateMessageQueueAveragely`, `..ByCircle`)."""
    if strategy == "AVG_BY_CIRCLE":
        return queues[index::count]
    size, rest = divmod(len(queues), count)
    start = index * size + min(index, rest)
    return queues[start : start + size + (index < rest)]
