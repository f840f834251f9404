"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what becomes of a message that a client has.

Sources: proxy/grpc/v2/consumer/AckMessageActivity, ChangeInvisibleDurationActivity,
proxy/grpc/v2/producer/ForwardMessageToDLQActivity.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from gantrymq.proxy.call import Call, Handlers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.receiving.handle import Handle
from gantrymq.proxy.receiving.handle_signature import HandleSignatures
from gantrymq.proxy.receiving.pop_requests import PopRequests
from gantrymq.proxy.receiving.renewing import Renewing
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

#: Requests to brokers that one AckMessage has under way.
_AT_ONCE = 32
#: Entries of one AckMessage; Apache's clients send one, or what they have received at once.
MAX_ENTRIES = 4096


class Acks:
    """The three for all clients."""

    def __init__(
        self, config: ProxyConfig, requests: PopRequests, renewing: Renewing, signatures: HandleSignatures
    ) -> None:
        self._config = config
        self._signatures = signatures
        self._requests = requests
        self._renewing = renewing

    @property
    def handlers(self) -> Handlers:
        return {
            "AckMessage": self.ack_message,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
        }

    async def ack_message(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Each entry has a status of its own; that of the whole is theirs, or MULTIPLE_RESULTS."""
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
        for start in range(0, len(request.entries), _AT_ONCE):
            some = request.entries[start : start + _AT_ONCE]
            if len(some) == 1:
                results.append(await self._ack(call, group, topic, some[0]))
            else:
                results += await asyncio.gather(*(self._ack(call, group, topic, entry) for entry in some))
        codes = {result.status.code for result in results}
        code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
        return AckMessageResponse(status=status(code), entries=results)

    async def _ack(self, call: Call, group: str, topic: str, entry: AckMessageEntry) -> AckMessageResultEntry:
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
        """The newest handle of the message that a request settles. Raises ProxyError if it isn't the client's."""
        self._signatures.check(request.receipt_handle, call.user, group, topic)
        return self._renewing.handle_of(call.client_id, group, topic, request.message_id, request.receipt_handle)

    async def change_invisible_duration(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """The message comes again after that time. The proxy doesn't renew it any more: the client has decided."""
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
        """The client has tried the message as often as it may."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        async with self._handle(call, group, topic, request) as handle:
            await self._requests.to_dead_letters(handle, group, topic, request.message_id)
        return ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))
