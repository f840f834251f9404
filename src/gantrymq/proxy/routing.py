"""The rpcs QueryRoute and QueryAssignment (`RouteActivity`).

Both return a topic's queues with the proxy's own address in place of the brokers' addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.lite_topic import LITE_BIND_TOPIC
from gantrymq.proxy import metadata as topic_types
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Call, EncodedResponse, Handlers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.response_cache import ResponseCache
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
    Resource,
)
from gantrymq.proxy.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from gantrymq.proxy.validation import check_topic, check_topic_and_group
from gantrymq.proxy.wire_format import message_tag, number_tag, varint

#: Queue id for all queues of a broker. The broker then distributes the messages of its queues.
_ANY_QUEUE = -1
_TYPES: dict[str, list[MessageType]] = {
    topic_types.NORMAL: [MessageType.NORMAL],
    topic_types.FIFO: [MessageType.FIFO],
    topic_types.DELAY: [MessageType.DELAY],
    topic_types.TRANSACTION: [MessageType.TRANSACTION],
    topic_types.PRIORITY: [MessageType.PRIORITY],
    topic_types.LITE: [MessageType.LITE],
    topic_types.MIXED: [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION],
    topic_types.UNSPECIFIED: [MessageType.MESSAGE_TYPE_UNSPECIFIED],
}
#: Largest size of a request's topic and endpoints, bytes. The response repeats them for each queue.
MAX_REPEATED = 1024
#: Protobuf tags of the fields with queues and assignments, and of the queue id.
_QUEUES_OF_ROUTE = message_tag(QueryRouteResponse.MESSAGE_QUEUES_FIELD_NUMBER)
_ASSIGNMENTS = message_tag(QueryAssignmentResponse.ASSIGNMENTS_FIELD_NUMBER)
_QUEUE_OF_ASSIGNMENT = message_tag(Assignment.MESSAGE_QUEUE_FIELD_NUMBER)
_QUEUE_ID = number_tag(MessageQueue.ID_FIELD_NUMBER)
_READ_WRITE = PERM_READ | PERM_WRITE


class Routing:
    """Serves the two rpcs. Routes contain the hosts in the request, which the client uses to connect to proxies."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, metadata: Metadata) -> None:
        self._config = config
        self._brokers = brokers
        self._metadata = metadata
        self._responses = ResponseCache()
        #: The port in routes, set when the proxy listens.
        self.port = config.grpc_server_port

    @property
    def handlers(self) -> Handlers:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(self, call: Call, request: QueryRouteRequest) -> EncodedResponse:
        """Returns all queues of a topic."""
        topic = request.topic.name
        check_topic(topic)
        _check_repeated(request)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        topic_type = await self._metadata.topic_type(topic)
        key = (request.topic.SerializeToString(), endpoints.SerializeToString(), topic_type)
        response = self._responses.get(
            key, route, lambda: _encode_route(route, request.topic, endpoints, _TYPES[topic_type])
        )
        return EncodedResponse(Code.OK, response)

    async def query_assignment(
        self, call: Call, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse | EncodedResponse:
        """Returns the readable queues for a consumer: one entry for each broker, which distributes its messages itself.

        For a group with orderly consumption, returns one entry for each queue.
        """
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        _check_repeated(request)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        config = await self._metadata.group(group)
        # A group with lite topics reads them in order, whatever their queues of the parent topic.
        is_fifo = config is not None and config.consume_message_orderly and not config.attributes.get(LITE_BIND_TOPIC)
        by_name = _by_name(route)
        response = [QueryAssignmentResponse(status=status(Code.OK)).SerializeToString()]
        for queues in route.queue_datas:
            broker = by_name.get(queues.broker_name)
            if not queues.perm & PERM_READ or broker is None or broker.master_address is None:
                continue
            encoder = _QueueEncoder(
                request.topic, Broker(name=queues.broker_name, id=MASTER_ID, endpoints=endpoints), ()
            )
            if is_fifo:
                queue_ids: Iterable[int] = range(queues.read_queue_nums)
            else:
                queue_ids = (_ANY_QUEUE,) if queues.read_queue_nums > 0 else ()
            response += (
                encoder.encode(_ASSIGNMENTS, queue_id, _permission(queues.perm), _QUEUE_OF_ASSIGNMENT)
                for queue_id in queue_ids
            )
        if len(response) == 1:
            return QueryAssignmentResponse(status=status(Code.FORBIDDEN, "no readable queue"))
        return EncodedResponse(Code.OK, b"".join(response))

    def _endpoints(self, asked: Endpoints) -> Endpoints:
        """Returns the endpoints of the proxy, with the hosts in the client's request."""
        by_client = self._config.use_endpoint_port_from_request
        return Endpoints(
            scheme=asked.scheme or AddressScheme.IPv4,
            addresses=[
                Address(host=address.host, port=address.port if by_client else self.port) for address in asked.addresses
            ],
        )


class _QueueEncoder:
    """Encodes the queues of a topic on one broker. They differ only in queue id and permission.

    Building and encoding 1,024 messages takes 6 ms and blocks all other calls. This encoder takes 0.3 ms.
    """

    def __init__(self, topic: Resource, broker: Broker, types: Sequence[MessageType]) -> None:
        self._rest = MessageQueue(topic=topic, broker=broker, accept_message_types=types).SerializeToString()
        #: Permission -> the encoded fields that all queues with this permission share.
        self._common: dict[Permission, bytes] = {}

    def encode(self, field: bytes, queue_id: int, permission: Permission, inner_field: bytes = b"") -> bytes:
        """Encodes a queue as the field with the tag `field`, within a nested message if `inner_field` is given."""
        common = self._common.get(permission)
        if common is None:
            common = self._common[permission] = (
                self._rest + MessageQueue(permission=permission).SerializeToString() + _QUEUE_ID
            )
        number = varint(queue_id)
        size = varint(len(common) + len(number))
        if inner_field:
            size = varint(len(inner_field) + len(size) + len(common) + len(number)) + inner_field + size
        return b"".join((field, size, common, number))


def _encode_route(route: TopicRouteData, topic: Resource, endpoints: Endpoints, types: Sequence[MessageType]) -> bytes:
    """Encodes the response to QueryRoute, with the queues of all brokers."""
    by_name = _by_name(route)
    response = [QueryRouteResponse(status=status(Code.OK)).SerializeToString()]
    for queues in route.queue_datas:
        broker = by_name.get(queues.broker_name)
        if broker is None:
            continue
        for broker_id in broker.broker_addrs:
            encoder = _QueueEncoder(topic, Broker(name=broker.broker_name, id=broker_id, endpoints=endpoints), types)
            response += (
                encoder.encode(_QUEUES_OF_ROUTE, queue_id, permission)
                for queue_id, permission in enumerate(_permissions(queues))
            )
    return b"".join(response)


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
    """Yields the permission of each queue of a broker: read-only queues first, then write-only, then the others."""
    read = queues.read_queue_nums if queues.perm & PERM_READ else 0
    write = queues.write_queue_nums if queues.perm & PERM_WRITE else 0
    both = min(read, write)
    yield from [Permission.READ] * (read - both)
    yield from [Permission.WRITE] * (write - both)
    yield from [Permission.READ_WRITE] * both
    if not queues.perm & _READ_WRITE:
        yield from [Permission.NONE] * max(1, queues.read_queue_nums, queues.write_queue_nums)
