"""QueryRoute and QueryAssignment: a topic's queues, with the proxy's own address as all brokers' (`RouteActivity`)."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.proxy import metadata as topic_types
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Call, Handlers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
)
from gantrymq.proxy.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from gantrymq.proxy.validation import check_topic, check_topic_and_group

#: Where the broker shares out the queues itself.
_ANY_QUEUE = -1
_TYPES: dict[str, list[MessageType]] = {
    topic_types.NORMAL: [MessageType.NORMAL],
    topic_types.FIFO: [MessageType.FIFO],
    topic_types.DELAY: [MessageType.DELAY],
    topic_types.TRANSACTION: [MessageType.TRANSACTION],
    topic_types.MIXED: [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION],
    topic_types.UNSPECIFIED: [MessageType.MESSAGE_TYPE_UNSPECIFIED],
}
#: A request's topic and endpoints, which the answer repeats for each queue, in bytes.
MAX_REPEATED = 4096
_READ_WRITE = PERM_READ | PERM_WRITE


class Routing:
    """Says where queues are: clients come to all of them by this proxy, or by those that they name themselves."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, metadata: Metadata) -> None:
        self._config = config
        self._brokers = brokers
        self._metadata = metadata
        #: What routes name; known when the proxy listens.
        self.port = config.grpc_server_port

    @property
    def handlers(self) -> Handlers:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(self, call: Call, request: QueryRouteRequest) -> QueryRouteResponse:
        topic = request.topic.name
        check_topic(topic)
        _check_repeated(request)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        types = _TYPES[await self._metadata.topic_type(topic)]
        by_name = _by_name(route)
        return QueryRouteResponse(
            status=status(Code.OK),
            message_queues=[
                MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    broker=Broker(name=broker.broker_name, id=broker_id, endpoints=endpoints),
                    accept_message_types=types,
                )
                for queues in route.queue_datas
                if (broker := by_name.get(queues.broker_name)) is not None
                for broker_id in broker.broker_addrs
                for queue_id, permission in enumerate(_permissions(queues))
            ],
        )

    async def query_assignment(self, call: Call, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        """One entry for each broker, which shares its queues out by itself; each queue for a group that keeps order."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        _check_repeated(request)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        config = await self._metadata.group(group)
        is_fifo = config is not None and config.consume_message_orderly
        by_name = _by_name(route)
        assignments = [
            Assignment(
                message_queue=MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=_permission(queues.perm),
                    broker=Broker(name=queues.broker_name, id=MASTER_ID, endpoints=endpoints),
                )
            )
            for queues in route.queue_datas
            if queues.perm & PERM_READ and queues.read_queue_nums > 0
            if (broker := by_name.get(queues.broker_name)) is not None and broker.master_address is not None
            for queue_id in (range(queues.read_queue_nums) if is_fifo else (_ANY_QUEUE,))
        ]
        if not assignments:
            return QueryAssignmentResponse(status=status(Code.FORBIDDEN, "no readable queue"))
        return QueryAssignmentResponse(status=status(Code.OK), assignments=assignments)

    def _endpoints(self, asked: Endpoints) -> Endpoints:
        """By which the client came, as it says itself."""
        by_client = self._config.use_endpoint_port_from_request
        return Endpoints(
            scheme=asked.scheme or AddressScheme.IPv4,
            addresses=[
                Address(host=address.host, port=address.port if by_client else self.port) for address in asked.addresses
            ],
        )


def _check_repeated(request: QueryRouteRequest | QueryAssignmentRequest) -> None:
    if request.ByteSize() > MAX_REPEATED:
        raise ProxyError(
            Code.ILLEGAL_ACCESS_POINT, f"endpoints and topic of {request.ByteSize()} bytes: max is {MAX_REPEATED}"
        )


def _by_name(route: TopicRouteData) -> dict[str, BrokerData]:
    return {broker.broker_name: broker for broker in route.broker_datas}


def _permission(perm: int) -> Permission:
    if perm & _READ_WRITE == _READ_WRITE:
        return Permission.READ_WRITE
    if perm & PERM_READ:
        return Permission.READ
    return Permission.WRITE if perm & PERM_WRITE else Permission.NONE


def _permissions(queues: QueueData) -> Iterator[Permission]:
    """Of each of a broker's queues: those that can only be read first, then those that can only be written."""
    read = queues.read_queue_nums if queues.perm & PERM_READ else 0
    write = queues.write_queue_nums if queues.perm & PERM_WRITE else 0
    both = min(read, write)
    yield from [Permission.READ] * (read - both)
    yield from [Permission.WRITE] * (write - both)
    yield from [Permission.READ_WRITE] * both
    if not queues.perm & _READ_WRITE:
        yield from [Permission.NONE] * max(1, queues.read_queue_nums, queues.write_queue_nums)
