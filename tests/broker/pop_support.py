"""A pop consumer that sends each request separately."""

from __future__ import annotations

import time
from typing import NamedTuple

from broker_support import Peer

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.protocol.receipt_handle import ReceiptHandle, parse_offset_info, real_topic, retry_flag


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Popped(NamedTuple):
    """A message and its receipt handle, from the response or from the message."""

    message: MessageExt
    handle: ReceiptHandle

    @property
    def body(self) -> bytes:
        return self.message.body


def popped(response: RemotingCommand, broker_name: str = "broker-a") -> list[Popped]:
    """Returns the messages of a pop response with their receipt handles."""
    fields = response.ext_fields
    starts = parse_offset_info(fields.get("startOffsetInfo"))
    found = []
    for message in decode_messages(response.body):
        text = message.properties.get("POP_CK")
        if text is None:
            flag = retry_flag(message.topic)
            handle = ReceiptHandle(
                int(starts[flag, str(message.queue_id)]),
                int(fields["popTime"]),
                int(fields["invisibleTime"]),
                int(fields["reviveQid"]),
                flag,
                broker_name,
                message.queue_id,
                message.queue_offset,
            )
        else:
            handle = ReceiptHandle.parse(text)
        found.append(Popped(message, handle))
    return found


class PopPeer(Peer):
    """A pop consumer of a group.

    It uses JSON headers only, because the request codes of pop do not fit into a binary header.
    """

    async def pop(
        self,
        topic: str,
        *,
        group: str = "poppers",
        queue_id: int = -1,
        count: int = 32,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        **changed: object,
    ) -> RemotingCommand:
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=0,  # the broker takes the time of arrival: a slow test must not be refused as late
            init_mode=0,
        )
        for name, value in changed.items():
            setattr(header, name, value)
        return await self.ask(RequestCode.POP_MESSAGE, header, timeout_ms=poll_ms + 20_000)

    async def messages(self, topic: str, **options: object) -> list[Popped]:
        return popped(await self.pop(topic, **options))  # type: ignore[arg-type]

    async def ack(self, one: Popped, group: str = "poppers") -> RemotingCommand:
        message, handle = one
        header = AckMessageRequestHeader(
            consumer_group=group,
            topic=real_topic(message.topic, group, handle.retry_flag),
            queue_id=message.queue_id,
            extra_info=str(handle),
            offset=message.queue_offset,
        )
        return await self.ask(RequestCode.ACK_MESSAGE, header)

    async def change(
        self, one: Popped, invisible_ms: int, group: str = "poppers", *, suspend: bool | None = None
    ) -> RemotingCommand:
        message, handle = one
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=real_topic(message.topic, group, handle.retry_flag),
            queue_id=message.queue_id,
            extra_info=str(handle),
            offset=message.queue_offset,
            invisible_time=invisible_ms,
            suspend=suspend,
        )
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
