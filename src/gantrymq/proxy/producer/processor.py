"""SendMessage, EndTransaction and RecallMessage.

Sources: `SendMessageActivity`, `ProducerProcessor`, `TransactionProcessor`, `RecallMessageActivity`.
"""

from __future__ import annotations

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import IllegalMessage, SendOutcomeUnknown
from gantrymq.logs import peer_log
from gantrymq.protocol import sys_flag
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.recall_handle import decode_recall_handle
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from gantrymq.proxy import metadata as topic_types
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Call, Handlers, Slices
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.producer.message_encoder import EncodedMessage, MessageEncoder
from gantrymq.proxy.producer.message_queue_selector import MessageQueueSelector
from gantrymq.proxy.producer.transactions import Half, Transactions
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.v2.definition_pb2 import Code, TransactionResolution, TransactionSource
from gantrymq.proxy.v2.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from gantrymq.proxy.validation import check_topic, is_blank
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Timeout of a broker's response to a send, ms.
SEND_TIMEOUT_MS = 3000
#: Largest number of messages of one request.
MAX_MESSAGES = 4096
RECALL_TIMEOUT_MS = 2000
_END_REMARK = "end transaction from proxy"

_CODES = {
    SendStatus.SEND_OK: Code.OK,
    SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_DECISIONS = {
    TransactionResolution.COMMIT: sys_flag.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: sys_flag.TRANSACTION_ROLLBACK,
}
_OK = status(Code.OK)


class ProducerProcessor:
    """Serves producers' rpcs for all clients."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, metadata: Metadata, transactions: Transactions) -> None:
        self._checks_types = config.enable_topic_message_type_check
        self._brokers = brokers
        self._metadata = metadata
        self._transactions = transactions
        self._encoder = MessageEncoder(config)
        self._queues = MessageQueueSelector()

    @property
    def handlers(self) -> Handlers:
        return {
            "SendMessage": self.send_message,
            "EndTransaction": self.end_transaction,
            "RecallMessage": self.recall_message,
        }

    async def send_message(self, call: Call, request: SendMessageRequest) -> SendMessageResponse:
        """Sends messages of one topic to a broker. Several messages form a batch: the broker stores all or none."""
        if not request.messages:
            raise ProxyError(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(request.messages) > MAX_MESSAGES:
            raise ProxyError(
                Code.BAD_REQUEST, f"{len(request.messages)} messages in one request: at most {MAX_MESSAGES} are taken"
            )
        resource = request.messages[0].topic
        topic = resource.name
        check_topic(topic)
        if len(request.messages) == 1:
            encoded = [self._encoder.encode(request.messages[0], call.peer)]
        else:
            async for message in Slices(call, request.messages):
                if message.topic != resource:
                    raise ProxyError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
            encoded = [self._encoder.encode(message, call.peer) async for message in Slices(call, request.messages)]
            if any(message.kind == topic_types.PRIORITY for message in encoded):
                # The queue id is the priority, and all messages of a batch are in one queue.
                raise ProxyError(Code.BAD_REQUEST, "messages with a priority can't be sent together")
            if any(message.kind == topic_types.LITE for message in encoded):
                # Brokers do not dispatch the messages of a batch to light queues.
                raise ProxyError(Code.BAD_REQUEST, "messages of lite topics can't be sent together")
        await self._check_type(topic, encoded)
        first = encoded[0]
        route = await self._brokers.route(topic)
        # A broker recognizes the ids of its own messages only, so an id selects the queue if no message group does.
        key = (first.message_group if len(encoded) == 1 else "") or first.deduplicate_id
        queue = self._queues.choose(topic, route, key)
        if queue is None:
            raise ProxyError(Code.FORBIDDEN, "no writable queue")
        try:
            result = await self._send(call, queue, encoded)
        except SendOutcomeUnknown as e:
            if e.result is None:
                raise
            # The broker reported a status such as FLUSH_DISK_TIMEOUT. As with Java's proxy, the client receives this
            # status.
            result = e.result
        if first.sys_flag & sys_flag.TRANSACTION_PREPARED and result.status is SendStatus.SEND_OK:
            self._remember(result, topic, first)
        return await _response(call, result, encoded)

    async def _check_type(self, topic: str, encoded: list[EncodedMessage]) -> None:
        """Raises ProxyError if a message has another type than its topic."""
        if not self._checks_types or topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            return
        expected = await self._metadata.topic_type(topic)
        for message in encoded:
            _check_same(expected, message.kind)

    async def _send(self, call: Call, queue: MessageQueue, encoded: list[EncodedMessage]) -> SendResult:
        """Sends one message, or several as a batch, to the master of the queue's broker."""
        first = encoded[0]
        is_batch = len(encoded) > 1
        body = first.body
        if is_batch:
            body = b"".join([encode_batch([(0, each.body, each.properties)]) async for each in Slices(call, encoded)])
        command = send_command(
            queue.topic,
            queue,
            body,
            first.properties,
            first.born_ms,
            sys_flag=first.sys_flag,
            batch=is_batch,
        )
        address = await self._brokers.master(queue.broker_name)
        timeout_ms = max(1, min(SEND_TIMEOUT_MS, call.remaining_ms()))
        return await self._brokers.api.send(address, command, queue, msg_id=first.message_id, timeout_ms=timeout_ms)

    def _remember(self, result: SendResult, topic: str, message: EncodedMessage) -> None:
        """Caches the position of a stored half message."""
        _, commit_log_offset = decode_offset_message_id(result.offset_msg_id)
        half = Half(
            result.transaction_id or message.message_id,
            topic,
            result.queue.broker_name,
            result.queue_offset,
            commit_log_offset,
        )
        self._transactions.remember(half, monotonic())

    async def end_transaction(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse:
        """Commits or rolls back with a one-way request, as in Java. A lost request leads to another check."""
        topic, transaction_id = request.topic.name, request.transaction_id
        check_topic(topic)
        if is_blank(transaction_id):
            raise ProxyError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        is_asked = request.source == TransactionSource.SOURCE_SERVER_CHECK
        half = self._transactions.take(topic, transaction_id, monotonic(), newest=is_asked)
        if half is None:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "cannot found transaction data")
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=_DECISIONS.get(request.resolution, 0),
            msg_id=request.message_id,
            topic=topic,
            from_transaction_check=is_asked,
            transaction_id=transaction_id,
            bname=half.broker_name,
        )
        address = await self._brokers.master(half.broker_name)
        await self._brokers.api.end_transaction(address, header, _END_REMARK)
        return EndTransactionResponse(status=_OK)

    async def recall_message(self, call: Call, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recalls a delayed message before its delivery."""
        topic = request.topic.name
        check_topic(topic)
        if self._checks_types:
            _check_same(await self._metadata.topic_type(topic), topic_types.DELAY)
        try:
            handle = decode_recall_handle(request.recall_handle)
        except IllegalMessage as e:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, str(e)) from e
        header = RecallMessageRequestHeader(topic=topic, recall_handle=request.recall_handle)
        address = await self._brokers.master(handle.broker_name)
        timeout_ms = max(1, min(RECALL_TIMEOUT_MS, call.remaining_ms()))
        message_id = await self._brokers.api.recall(address, header, timeout_ms)
        return RecallMessageResponse(status=_OK, message_id=message_id)


def _check_same(expected: str, actual: str) -> None:
    if expected not in (actual, topic_types.MIXED):
        raise ProxyError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}",
        )


async def _response(call: Call, result: SendResult, encoded: list[EncodedMessage]) -> SendMessageResponse:
    """Returns a response with one entry for each message. Java's proxy has one entry for a whole batch."""
    code = _CODES[result.status]
    if code != Code.OK:
        failed = status(code, f"send message failed, sendStatus={result.status.name}")
        return SendMessageResponse(status=status(code), entries=[SendResultEntry(status=failed)] * len(encoded))
    response = SendMessageResponse(status=_OK)
    first, transaction_id, recall_handle = result.queue_offset, result.transaction_id or "", result.recall_handle or ""
    offsets = result.queue_offsets or range(first, first + len(encoded))
    if len(encoded) == 1:
        response.entries.append(_entry(encoded[0], first, transaction_id, recall_handle))
    else:
        async for n, message in Slices(call, enumerate(encoded)):
            response.entries.append(_entry(message, offsets[n], transaction_id, recall_handle))
    return response


def _entry(message: EncodedMessage, offset: int, transaction_id: str, recall_handle: str) -> SendResultEntry:
    # If the broker had stored the message before, this is the unique key of the stored message.
    message_id = (message.deduplicate_id and transaction_id) or message.message_id
    return SendResultEntry(
        status=_OK,
        message_id=message_id,
        transaction_id=transaction_id,
        offset=offset,
        recall_handle=recall_handle,
    )
