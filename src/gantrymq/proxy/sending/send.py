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
from gantrymq.proxy.call import Call, Handlers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.sending.outgoing import Outgoing, Outgoings
from gantrymq.proxy.sending.queue_choice import QueueChoice
from gantrymq.proxy.sending.transactions import Half, Transactions
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

#: A broker's answer is waited for so long at most, ms.
SEND_TIMEOUT_MS = 3000
#: Messages of one request.
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


class Sending:
    """Producers' rpcs."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, metadata: Metadata, transactions: Transactions) -> None:
        self._checks_types = config.enable_topic_message_type_check
        self._brokers = brokers
        self._metadata = metadata
        self._transactions = transactions
        self._outgoings = Outgoings(config)
        self._queues = QueueChoice()

    @property
    def handlers(self) -> Handlers:
        return {
            "SendMessage": self.send_message,
            "EndTransaction": self.end_transaction,
            "RecallMessage": self.recall_message,
        }

    async def send_message(self, call: Call, request: SendMessageRequest) -> SendMessageResponse:
        """Stores messages of one topic: one by itself, several at once as a batch, all or none."""
        if not request.messages:
            raise ProxyError(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(request.messages) > MAX_MESSAGES:
            raise ProxyError(
                Code.BAD_REQUEST, f"{len(request.messages)} messages in one request: at most {MAX_MESSAGES} are taken"
            )
        resource = request.messages[0].topic
        topic = resource.name
        check_topic(topic)
        for message in request.messages:
            if message.topic != resource:
                raise ProxyError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        outgoings = [self._outgoings.outgoing(message, call.peer) for message in request.messages]
        await self._check_type(topic, outgoings)
        first = outgoings[0]
        route = await self._brokers.route(topic)
        queue = self._queues.choose(topic, route, first.message_group if len(outgoings) == 1 else "")
        if queue is None:
            raise ProxyError(Code.FORBIDDEN, "no writable queue")
        try:
            result = await self._send(queue, outgoings, min(SEND_TIMEOUT_MS, call.remaining_ms()))
        except SendOutcomeUnknown as e:
            if e.result is None:
                raise
            # As Java's proxy: the client sees the status of the send.
            result = e.result
        if first.sys_flag & sys_flag.TRANSACTION_PREPARED and result.status is SendStatus.SEND_OK:
            self._remember(result, topic, first)
        return _response(result, outgoings)

    async def _check_type(self, topic: str, outgoings: list[Outgoing]) -> None:
        if not self._checks_types or topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            return
        expected = await self._metadata.topic_type(topic)
        for outgoing in outgoings:
            _check_same(expected, outgoing.kind)

    async def _send(self, queue: MessageQueue, outgoings: list[Outgoing], timeout_ms: int) -> SendResult:
        first = outgoings[0]
        is_batch = len(outgoings) > 1
        command = send_command(
            queue.topic,
            queue,
            encode_batch((0, each.body, each.properties) for each in outgoings) if is_batch else first.body,
            first.properties,
            first.born_ms,
            sys_flag=first.sys_flag,
            batch=is_batch,
        )
        address = await self._brokers.master(queue.broker_name)
        return await self._brokers.api.send(
            address, command, queue, msg_id=first.message_id, timeout_ms=max(1, timeout_ms)
        )

    def _remember(self, result: SendResult, topic: str, outgoing: Outgoing) -> None:
        _, commit_log_offset = decode_offset_message_id(result.offset_msg_id)
        half = Half(
            result.transaction_id or outgoing.message_id,
            topic,
            result.queue.broker_name,
            result.queue_offset,
            commit_log_offset,
        )
        self._transactions.remember(half, monotonic())

    async def end_transaction(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse:
        """Tells the broker what becomes of a half; one-way, as Java's: it asks again when it doesn't learn."""
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
        """Takes back a delayed message that isn't delivered yet."""
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


def _response(result: SendResult, outgoings: list[Outgoing]) -> SendMessageResponse:
    """One entry for each message, where Java's proxy has one for a whole batch."""
    code = _CODES[result.status]
    if code != Code.OK:
        failed = status(code, f"send message failed, sendStatus={result.status.name}")
        return SendMessageResponse(status=status(code), entries=[SendResultEntry(status=failed)] * len(outgoings))
    return SendMessageResponse(
        status=_OK,
        entries=[
            SendResultEntry(
                status=_OK,
                message_id=outgoing.message_id,
                transaction_id=result.transaction_id or "",
                offset=result.queue_offset + n,
                recall_handle=result.recall_handle or "",
            )
            for n, outgoing in enumerate(outgoings)
        ],
    )
