"""Requests of POP to brokers: pop, acknowledge, change the invisible duration, move to the dead-letter queue.

Every request but a pop goes to the broker that the receipt handle names.

Sources: proxy/processor/ConsumerProcessor, ProducerProcessor (forwardMessageToDeadLetterQueue).
"""

from __future__ import annotations

from gantrymq.errors import BodyError, BrokerError, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader
from gantrymq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
)
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import LITE_TOPIC, POP_CK
from gantrymq.protocol.receipt_handle import ReceiptHandle, real_topic
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code

log = peer_log(__name__)

#: Delay level with which a broker moves a message to the dead-letter queue at once.
_TO_DEAD_LETTERS = -1
#: Response codes for a handle whose message does not exist or is not in flight.
_NOT_THERE = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)


class PopRequests:
    """Sends requests of POP for clients of any group. They raise ProxyError, BrokerError or a RemotingError."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def pop(self, broker_name: str, header: PopMessageRequestHeader, grace_ms: int) -> list[MessageExt]:
        """Returns messages like `PopApi.pop`. The handle in their property POP_CK is a `Handle`."""
        await self._brokers.master(broker_name)
        messages = await self._brokers.pops(header.consumer_group).pop(broker_name, header, grace_ms)
        for message in messages:
            message.properties[POP_CK] += f" {message.commit_log_offset}"
        return messages

    async def pop_lite(self, broker_name: str, header: PopLiteMessageRequestHeader, grace_ms: int) -> list[MessageExt]:
        """Returns messages of lite topics as `pop` does."""
        await self._brokers.master(broker_name)
        messages = await self._brokers.pops(header.consumer_group).pop_lite(broker_name, header, grace_ms)
        for message in messages:
            handle = ReceiptHandle.parse(message.properties[POP_CK])
            lite_topic = message.properties[LITE_TOPIC]
            message.properties[POP_CK] = str(Handle(handle, message.commit_log_offset, lite_topic))
        return messages

    async def ack(self, handle: Handle, group: str, topic: str) -> None:
        """Acknowledges a message."""
        receipt = handle.receipt
        header = AckMessageRequestHeader(
            consumer_group=group,
            topic=_real_topic(handle, group, topic),
            queue_id=receipt.queue_id,
            extra_info=str(handle),
            offset=receipt.queue_offset,
            lite_topic=handle.lite_topic or None,
        )
        await self._call(handle, RemotingCommand.request(RequestCode.ACK_MESSAGE, header))

    async def change_invisible_time(
        self, handle: Handle, group: str, topic: str, invisible_ms: int, *, suspend: bool | None = None
    ) -> Handle:
        """Redelivers the message after `invisible_ms`. Returns its new handle."""
        receipt = handle.receipt
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=_real_topic(handle, group, topic),
            queue_id=receipt.queue_id,
            extra_info=str(handle),
            offset=receipt.queue_offset,
            invisible_time=invisible_ms,
            suspend=suspend,
            lite_topic=handle.lite_topic or None,
        )
        response = await self._call(handle, RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header))
        answer = response.read_header(ChangeInvisibleTimeResponseHeader)
        changed = receipt._replace(
            start_offset=receipt.queue_offset,
            pop_time=answer.pop_time,
            invisible_time=answer.invisible_time,
            revive_queue_id=answer.revive_qid,
        )
        return handle._replace(receipt=changed)

    async def to_dead_letter_queue(self, handle: Handle, group: str, topic: str, message_id: str) -> None:
        """Copies a message to the group's dead-letter queue, then acknowledges it."""
        if handle.commit_log_offset < 0:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        header = ConsumerSendMsgBackRequestHeader(
            offset=handle.commit_log_offset,
            group=group,
            delay_level=_TO_DEAD_LETTERS,
            origin_msg_id=message_id,
            origin_topic=_real_topic(handle, group, topic),
            max_reconsume_times=0,
        )
        await self._call(handle, RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
        try:
            await self.ack(handle, group, topic)
        except GantryError as e:
            # The copy is stored, so the request has succeeded. At worst, the message is also redelivered.
            log.warning(
                "message %s of group %s is a dead-letter message and may be redelivered: %s", message_id, group, e
            )

    async def _call(self, handle: Handle, request: RemotingCommand) -> RemotingCommand:
        """Sends a request to the broker of the handle. Raises ProxyError if the handle is no longer valid."""
        try:
            address = await self._brokers.master(handle.receipt.broker_name)
        except ProxyError as e:
            raise ProxyError(
                Code.INVALID_RECEIPT_HANDLE, f"cannot find broker {handle.receipt.broker_name[:200]}"
            ) from e
        try:
            return await self._brokers.remoting.call(address, request)
        except BrokerError as e:
            if e.code in _NOT_THERE:
                # After this code, clients stop. After any other error, they retry forever.
                raise ProxyError(Code.INVALID_RECEIPT_HANDLE, e.remark) from e
            raise


def _real_topic(handle: Handle, group: str, topic: str) -> str:
    try:
        return real_topic(topic, group, handle.receipt.retry_flag)
    except BodyError as e:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is illegal: {e}") from e
