"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: the rpcs that settle a received message.

Sources: proxy/grpc/v2/consumer/AckMessageActivity, ChangeInvisibleDurationActivity,
proxy/grpc/v2/producer/ForwardMessageToDLQActivity.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from gantrymq.proxy.call import Call, Handlers, Slices
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.consumer.handle_signature import HandleSignatures
from gantrymq.proxy.consumer.pop_requests import PopRequests
from gantrymq.proxy.consumer.receipt_handle_manager import ReceiptHandleManager
from gantrymq.proxy.statuses import ProxyError, status, status_of
from gantrymq.proxy.times import duration_ms
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.proxy.v2.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from gantrymq.proxy.validation import check_invisible_time, check_topic_and_group

#: Concurrent requests to brokers of one AckMessage.
_AT_ONCE = 32
#: Largest number of entries in one AckMessage. Apache's clients acknowledge one message, or all messages of one
#: ReceiveMessage.
MAX_ENTRIES = 4096


class Acks:
    """Serves the three rpcs for all clients."""

    def __init__(
        self,
        config: ProxyConfig,
        requests: PopRequests,
        receipt_handles: ReceiptHandleManager,
        signatures: HandleSignatures,
    ) -> None:
        self._config = config
        self._signatures = signatures
        self._requests = requests
        self._receipt_handles = receipt_handles

    @property
    def handlers(self) -> Handlers:
        return {
            "AckMessage": self.ack_message,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
        }

    async def ack_message(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledges messages, with a status for each. If the statuses differ, the response has MULTIPLE_RESULTS."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        if not request.entries:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(request.entries) > MAX_ENTRIES:
            raise ProxyError(
                Code.BAD_REQUEST,
                f"{len(request.entries)} messages are acknowledged at once: at most {MAX_ENTRIES} are taken",
            )
        results: list[AckMessageResultEntry] = []
        async for start in Slices(call, range(0, len(request.entries), _AT_ONCE)):
            some = request.entries[start : start + _AT_ONCE]
            if len(some) == 1:
                results.append(await self._ack(call, group, topic, some[0]))
            else:
                results += await asyncio.gather(*(self._ack(call, group, topic, entry) for entry in some))
        codes = {result.status.code for result in results}
        code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
        return AckMessageResponse(status=status(code), entries=results)

    async def _ack(self, call: Call, group: str, topic: str, entry: AckMessageEntry) -> AckMessageResultEntry:
        """Acknowledges one message. Errors become the status of its entry."""
        result = AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        try:
            async with self._handle(call, group, topic, entry) as handle:
                await self._requests.ack(handle, group, topic)
        except Exception as e:
            result.status.CopyFrom(status_of(e))
        else:
            result.status.CopyFrom(status(Code.OK))
        return result

    def _handle(
        self,
        call: Call,
        group: str,
        topic: str,
        request: AckMessageEntry | ChangeInvisibleDurationRequest | ForwardMessageToDeadLetterQueueRequest,
    ) -> AbstractAsyncContextManager[Handle]:
        """Returns the newest handle of the message. Raises ProxyError if the handle was issued to another user."""
        self._signatures.check(request.receipt_handle, call.user, group, topic)
        return self._receipt_handles.handle_of(
            call.client_id, group, topic, request.message_id, request.receipt_handle, request.lite_topic
        )

    async def change_invisible_duration(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Sets the time after which the message is redelivered. The proxy stops renewing the message."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        invisible_ms = duration_ms(request.invisible_duration)
        check_invisible_time(invisible_ms, self._config)
        async with self._handle(call, group, topic, request) as handle:
            changed = await self._requests.change_invisible_time(
                handle, group, topic, invisible_ms, suspend=request.suspend or None
            )
        receipt_handle = self._signatures.signed(str(changed), call.user, group, topic)
        return ChangeInvisibleDurationResponse(status=status(Code.OK), receipt_handle=receipt_handle)

    async def forward_message_to_dead_letter_queue(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Moves a message to the dead-letter queue, after the client has used all attempts."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        async with self._handle(call, group, topic, request) as handle:
            await self._requests.to_dead_letter_queue(handle, group, topic, request.message_id)
        return ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))
