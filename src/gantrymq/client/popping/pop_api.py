"""Requests for POP and for queue assignment by the broker, one function for each request.

Each function raises a RemotingError if the network fails, BrokerUnavailable while the broker has no master, and
BrokerError for other error responses.
Source: client/impl/MQClientAPIImpl (processPopResponse, ackMessageAsync, changeInvisibleTimeAsync).
"""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.pulled_messages import decode_popped
from gantrymq.client.rate_limit_waits import invoke_within_limits
from gantrymq.errors import BodyError, BrokerUnavailable, GantryError, IllegalMessage
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.pop import QueryAssignmentRequestBody, QueryAssignmentResponseBody, QueueAssignment
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from gantrymq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, offset_in
from gantrymq.protocol.properties import FIRST_POP_TIME, LITE_TOPIC, POP_CK
from gantrymq.protocol.receipt_handle import (
    NORMAL_TOPIC,
    ReceiptHandle,
    normal_topic,
    parse_offset_info,
    real_topic,
    retry_flag,
)
from gantrymq.protocol.refusals import broker_error, retry_after_ms

log = peer_log(__name__)

#: Time that the broker may take in addition to the wait for messages, ms.
GRACE_MS = 10_000
#: A longer number of deliveries counts as 0.
_COUNT_DIGITS = 10
_TIMEOUT_MS = 3000
_ANY_QUEUE = -1
_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT)


class PopApi:
    """POP requests of one group."""

    def __init__(self, client: ClientInstance, group: str, max_body_size: int = MAX_DECOMPRESSED_SIZE) -> None:
        self._client = client
        self.group = group
        self._max_body_size = max_body_size

    async def pop(
        self, broker_name: str, header: PopMessageRequestHeader, grace_ms: int = GRACE_MS
    ) -> list[MessageExt]:
        """Pops messages and sets their receipt handles. Returns an empty list if no message arrives within `poll_time`.

        The response may take `grace_ms` longer. While a rate limit is exceeded, waits and repeats the pop, within
        `poll_time`; the result of a longer wait is an empty list. The error POLLING_FULL is raised as BrokerError.
        """
        request = RemotingCommand.request(RequestCode.POP_MESSAGE, header)
        response = await self._popped(broker_name, request, header.poll_time, grace_ms)
        if response is None:
            return []
        messages = [
            message
            for message in decode_popped(response.body, broker_name, self._max_body_size)
            if self._is_of(message, header)
        ]
        give_handles(messages, response.read_header(PopMessageResponseHeader), broker_name, bool(header.order))
        for message in messages:
            message.topic = header.topic
        return messages

    async def pop_lite(
        self, broker_name: str, header: PopLiteMessageRequestHeader, grace_ms: int = GRACE_MS
    ) -> list[MessageExt]:
        """Pops messages of lite topics and sets their receipt handles, as `pop` does."""
        request = RemotingCommand.request(RequestCode.POP_LITE_MESSAGE, header)
        response = await self._popped(broker_name, request, header.poll_time, grace_ms)
        if response is None:
            return []
        messages = decode_popped(response.body, broker_name, self._max_body_size)
        answer = response.read_header(PopLiteMessageResponseHeader)
        counts = lite_counts(answer.order_count_info or "", len(messages))
        found = []
        for message, count in zip(messages, counts, strict=True):
            lite_topic = message.properties.get(LITE_TOPIC, "")
            offset = offset_in(message.properties, light_queue_of(header.topic, lite_topic))
            if message.topic != header.topic or offset is None:
                log.error("%s is for a pop of lite topics of %s: it is left out", message.place, header.topic)
                continue
            handle = ReceiptHandle(
                offset,
                answer.pop_time,
                answer.invisible_time,
                answer.revive_qid,
                NORMAL_TOPIC,
                broker_name,
                LIGHT_QUEUE_ID,
                offset,
            )
            message.properties[POP_CK] = str(handle)
            message.properties.setdefault(FIRST_POP_TIME, str(answer.pop_time))
            message.reconsume_times = count
            found.append(message)
        return found

    async def _popped(
        self, broker_name: str, request: RemotingCommand, poll_ms: int, grace_ms: int
    ) -> RemotingCommand | None:
        """Returns the response with messages, or None if there are none. Raises BrokerError."""
        address = self._address(broker_name)
        response = await invoke_within_limits(
            self._client.remoting, address, request, poll_ms + grace_ms, wait_ms=poll_ms
        )
        is_limited = response.code == ResponseCode.FLOW_CONTROL and retry_after_ms(response) is not None
        if not is_limited and response.code not in (*_NOTHING, ResponseCode.SUCCESS):
            raise broker_error(response, address)
        self._client.failure_log.recovered(address)
        return response if response.code == ResponseCode.SUCCESS else None

    def _is_of(self, message: MessageExt, header: PopMessageRequestHeader) -> bool:
        """Returns whether the message belongs to the requested topic and queue, or to their retry topic."""
        if message.topic == header.topic and header.queue_id in (message.queue_id, _ANY_QUEUE):
            return True
        if message.topic != header.topic and normal_topic(message.topic, self.group) == header.topic:
            return True
        log.error("%s is for a pop of queue %d of %s: it is left out", message.place, header.queue_id, header.topic)
        return False

    async def ack(self, message: MessageExt, topic: str, lite_topic: str | None = None) -> None:
        """Acknowledges a message popped from `topic`. Raises IllegalMessage for a message that was not popped.

        `lite_topic` is the lite topic of a message from `pop_lite`.
        """
        handle = handle_of(message)
        header = AckMessageRequestHeader(
            consumer_group=self.group,
            topic=real_topic(topic, self.group, handle.retry_flag),
            queue_id=handle.queue_id,
            extra_info=message.properties[POP_CK],
            offset=handle.queue_offset,
            lite_topic=lite_topic,
            bname=handle.broker_name,
        )
        await self._call(topic, handle, RemotingCommand.request(RequestCode.ACK_MESSAGE, header))

    async def change_invisible_time(
        self, message: MessageExt, topic: str, invisible_ms: int, lite_topic: str | None = None
    ) -> None:
        """Changes the invisible duration of a message popped from `topic`; see `ack` for `lite_topic`.

        Unless acknowledged, the message is redelivered `invisible_ms` from now. It gets a new receipt handle. Raises
        IllegalMessage if the message was not popped.
        """
        handle = handle_of(message)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self.group,
            topic=real_topic(topic, self.group, handle.retry_flag),
            queue_id=handle.queue_id,
            extra_info=message.properties[POP_CK],
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            lite_topic=lite_topic,
            bname=handle.broker_name,
        )
        request = RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        response = await self._call(topic, handle, request)
        answer = response.read_header(ChangeInvisibleTimeResponseHeader)
        message.properties[POP_CK] = str(
            handle._replace(
                start_offset=handle.queue_offset,
                pop_time=answer.pop_time,
                invisible_time=answer.invisible_time,
                revive_queue_id=answer.revive_qid,
            )
        )

    async def _call(self, topic: str, handle: ReceiptHandle, request: RemotingCommand) -> RemotingCommand:
        """Sends a request about a popped message to its broker, and reports a failure to the client."""
        try:
            return await self._client.remoting.call(self._address(handle.broker_name), request, _TIMEOUT_MS)
        except GantryError as e:
            self._client.report_failure(topic, e)
            raise

    async def assignment(self, address: str, topic: str, strategy_name: str) -> Sequence[QueueAssignment] | None:
        """Returns the queues that the broker assigns to this client; None to keep the current queues."""
        body = QueryAssignmentRequestBody(topic, self.group, self._client.client_id, strategy_name)
        response = await self._client.remoting.call(
            address, RemotingCommand.request(RequestCode.QUERY_ASSIGNMENT, body=encode_json(body)), _TIMEOUT_MS
        )
        return decode_json(response.body, QueryAssignmentResponseBody).message_queue_assignments

    def _address(self, broker_name: str) -> str:
        address = self._client.routes.master_address(broker_name)
        if address is None:
            raise BrokerUnavailable(f"broker {broker_name} has no master at present: try again")
        return address


def handle_of(message: MessageExt) -> ReceiptHandle:
    """Returns the receipt handle of a popped message. Raises IllegalMessage."""
    text = message.properties.get(POP_CK)
    if text is None:
        raise IllegalMessage(f"{message!r} was not popped: it has no receipt handle")
    try:
        return ReceiptHandle.parse(text)
    except BodyError as e:
        raise IllegalMessage(str(e)) from e


def give_handles(
    messages: Sequence[MessageExt], header: PopMessageResponseHeader, broker_name: str, order: bool
) -> None:
    """Sets the messages' receipt handles from the lists in the response, unless a redelivered message has its own.

    The handle in a message counts only if it matches the message's position. Otherwise a producer has copied the handle
    from another popped message.
    """
    start_offsets = parse_offset_info(header.start_offset_info)
    order_counts = parse_offset_info(header.order_count_info) if order else {}
    for message in messages:
        flag, queue_id, offset = retry_flag(message.topic), str(message.queue_id), message.queue_offset
        if not _has_handle(message):
            handle = ReceiptHandle(
                _number(start_offsets.get((flag, queue_id), str(offset))),
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                broker_name,
                message.queue_id,
                offset,
            )
            message.properties[POP_CK] = str(handle)
        if count := order_counts.get((flag, f"qo{queue_id}%{offset}")) or order_counts.get((flag, queue_id)):
            message.reconsume_times = _number(count)
        message.properties.setdefault(FIRST_POP_TIME, str(header.pop_time))


def lite_counts(text: str, messages: int) -> list[int]:
    """Returns the number of earlier deliveries of each popped message (`ExtraInfoUtil.parseLiteOrderCountInfo`).

    Args:
        text: `order_count_info` of a response to POP_LITE_MESSAGE. Its entries are separated by semicolons. For a
            redelivered message, Java's broker sends "0 qo0%7 1": retry flag, queue and offset, count.
        messages: Number of messages in the response. If `text` has another number of entries, all counts are 0.
    """
    entries = text.split(";")
    if len(entries) != messages:
        return [0] * messages
    counts = [entry.rpartition(" ")[2] for entry in entries]
    return [int(count) if len(count) < _COUNT_DIGITS and count.isascii() and count.isdigit() else 0 for count in counts]


def _has_handle(message: MessageExt) -> bool:
    text = message.properties.get(POP_CK)
    if text is None:
        return False
    try:
        handle = ReceiptHandle.parse(text)
    except BodyError:
        return False
    return (handle.queue_id, handle.queue_offset) == (message.queue_id, message.queue_offset)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as e:
        raise BodyError(f"{text[:200]!r} in a pop's answer is no number") from e
