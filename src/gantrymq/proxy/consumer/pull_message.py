"""PullMessage, UpdateOffset, GetOffset, QueryOffset: rpcs for consumers that manage their own queues and offsets.

Java's proxy returns UNIMPLEMENTED for them. Their behaviour follows service.proto.
"""

from __future__ import annotations

from gantrymq.client.broker_api import PullStatus
from gantrymq.client.pulled_messages import Unreadable, decode_pulled
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Call, Handlers, ServerStream
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.receive_message import KEPT_BESIDE_BODY
from gantrymq.proxy.messages import to_protobuf
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.subscriptions import subscription_of
from gantrymq.proxy.times import duration_ms, timestamp_ms
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.proxy.v2.service_pb2 import (
    GetOffsetRequest,
    GetOffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from gantrymq.proxy.validation import check_group, check_topic

log = peer_log(__name__)

#: Largest number of messages of one pull.
MAX_BATCH = 1024
#: Largest timestamp, ms: brokers use 64 bits for it.
_LAST_MS = (1 << 63) - 1
#: Timeout of the broker's response after the end of the polling time, ms.
_GRACE_MS = 3000


class PullMessageActivity:
    """Serves the four rpcs for all clients."""

    def __init__(self, config: ProxyConfig, brokers: Brokers) -> None:
        self._config = config
        self._brokers = brokers

    @property
    def handlers(self) -> Handlers:
        return {
            "PullMessage": self.pull_message,
            "UpdateOffset": self.update_offset,
            "GetOffset": self.get_offset,
            "QueryOffset": self.query_offset,
        }

    async def pull_message(self, call: ServerStream, request: PullMessageRequest) -> None:
        """Streams a status, the messages and, unless there is an error, the next offset."""
        check_group(request.group.name)
        queue, address = await self._queue(request.message_queue)
        _check_offset(request.offset)
        if request.batch_size < 1:
            raise ProxyError(Code.BAD_REQUEST, f"batch size {request.batch_size}: 1 to {MAX_BATCH} are possible")
        subscription = subscription_of(queue.topic, request.filter_expression)
        poll_ms = min(
            max(duration_ms(request.long_polling_timeout), 0),
            self._config.grpc_client_consumer_max_long_polling_timeout_millis,
            call.remaining_ms(),
        )
        header = PullMessageRequestHeader(
            consumer_group=request.group.name,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=request.offset,
            max_msg_nums=min(request.batch_size, MAX_BATCH),
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if poll_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=poll_ms,
            sub_version=0,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        result = await self._brokers.api.pull(address, header, poll_ms + _GRACE_MS)
        messages: list[MessageExt] = []
        next_offset = result.next_begin_offset
        if result.status is PullStatus.FOUND:
            messages, rest = decode_pulled(result.body, queue, request.offset, MAX_DECOMPRESSED_SIZE, _left_out)
            next_offset = next_offset if rest is None else rest
        if subscription.tags_set and subscription.expression_type == EXPRESSION_TAG:
            # The broker compares only hash codes of tags, and different tags can have the same hash code.
            messages = [message for message in messages if message.tags in subscription.tags_set]
        messages = [message for message in messages if not message.is_damaged]
        if result.status is PullStatus.OFFSET_ILLEGAL:
            first = status(
                Code.ILLEGAL_OFFSET, f"offset {request.offset} is not in {result.min_offset}~{result.max_offset}"
            )
        elif messages:
            first = status(Code.OK)
        else:
            first = status(Code.MESSAGE_NOT_FOUND, "no new message")
        call.keep(sum(len(message.body) + KEPT_BESIDE_BODY for message in messages))
        await call.write(PullMessageResponse(status=first))
        for message in messages:
            await call.write(PullMessageResponse(message=to_protobuf(message)))
        await call.write(PullMessageResponse(next_offset=next_offset))

    async def update_offset(self, call: Call, request: UpdateOffsetRequest) -> UpdateOffsetResponse:
        """Stores the group's consumer offset of a queue."""
        check_group(request.group.name)
        queue, address = await self._queue(request.message_queue)
        _check_offset(request.offset)
        await self._brokers.api.update_offset(address, request.group.name, queue.topic, queue.queue_id, request.offset)
        return UpdateOffsetResponse(status=status(Code.OK))

    async def get_offset(self, call: Call, request: GetOffsetRequest) -> GetOffsetResponse:
        """Returns the group's consumer offset of a queue. Raises ProxyError OFFSET_NOT_FOUND if there is none."""
        check_group(request.group.name)
        queue, address = await self._queue(request.message_queue)
        offset = await self._brokers.api.query_offset(
            address, request.group.name, queue.topic, queue.queue_id, only_committed=True
        )
        if offset is None:
            raise ProxyError(Code.OFFSET_NOT_FOUND, f"group {request.group.name} has no offset in that queue")
        return GetOffsetResponse(status=status(Code.OK), offset=offset)

    async def query_offset(self, call: Call, request: QueryOffsetRequest) -> QueryOffsetResponse:
        """Returns the first offset or the end offset of a queue, or the offset at a timestamp."""
        queue, address = await self._queue(request.message_queue)
        api = self._brokers.api
        match request.query_offset_policy:
            case pb.BEGINNING:
                offset = await api.min_offset(address, queue.topic, queue.queue_id)
            case pb.END:
                offset = await api.max_offset(address, queue.topic, queue.queue_id)
            case pb.TIMESTAMP if request.HasField("timestamp"):
                at_ms = min(max(timestamp_ms(request.timestamp), 0), _LAST_MS)
                offset = await api.search_offset(address, queue.topic, queue.queue_id, at_ms)
            case _:
                raise ProxyError(Code.BAD_REQUEST, "the policy is none, or there is no timestamp for it")
        return QueryOffsetResponse(status=status(Code.OK), offset=offset)

    async def _queue(self, asked: pb.MessageQueue) -> tuple[MessageQueue, str]:
        """Returns a readable queue and its broker's address. Raises ProxyError if the topic has no such queue."""
        topic, broker_name = asked.topic.name, asked.broker.name
        check_topic(topic)
        route = await self._brokers.route(topic)
        counts = {queues.broker_name: queues.read_queue_nums for queues in route.queue_datas if queues.perm & PERM_READ}
        if not 0 <= asked.id < counts.get(broker_name, 0):
            raise ProxyError(Code.BAD_REQUEST, f"topic {topic} has no queue {asked.id} on broker {broker_name[:200]!r}")
        return MessageQueue(topic, broker_name, asked.id), await self._brokers.master(broker_name)


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise ProxyError(Code.ILLEGAL_OFFSET, f"offset {offset}: offsets begin at 0")


def _left_out(unreadable: Unreadable) -> MessageExt | None:
    """Replaces an unreadable record by a damaged message, so that the consumer can continue after the record."""
    log.error("offset %d can't be read, it is left out: %s", unreadable.queue_offset, unreadable.error)
    return unreadable.stand_in(MessageQueue("", "", 0))
