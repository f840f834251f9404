"""Send hook that writes the traces of a producer (`SendMessageTraceHookImpl`)."""

from __future__ import annotations

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.message_encoder import DELAYS
from gantrymq.client.producing.send_hook import SendContext
from gantrymq.client.trace import DEFAULT_REGION, MessageType, TraceBean, TraceContext, TraceDispatcher, TraceType
from gantrymq.protocol import properties as names
from gantrymq.system.clock import now_ms


class SendTraceHook:
    """Passes each stored message to `dispatcher`. Failed messages have no trace, as in Java.

    The result of a one-way send is unknown; it counts as stored. Java does not trace these.
    """

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        result, first = context.result, context.messages[0]
        if first.topic == self._dispatcher.topic or (result is None and (context.error or not context.oneway)):
            return
        if result is not None and not result.trace_on:
            return
        ids, offset_ids = [context.msg_id], [""]
        if result is not None:
            ids, offset_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
        if len(offset_ids) != len(ids):
            # A queue that stores a batch as one record (BatchCQ) has one id for all messages.
            offset_ids = [result.offset_msg_id if result is not None else ""] * len(ids)
        # One line for each message of a batch. Java's producer writes one line for all. Its reader then finds no
        # message, because it compares a single id with all ids of the line.
        beans = [
            TraceBean(
                topic=message.topic,
                msg_id=msg_id,
                offset_msg_id=offset_id,
                tags=message.tags or "",
                keys=message.properties.get(names.KEYS, ""),
                store_host=context.address,
                body_length=len(message.body),
                message_type=message_type(properties),
            )
            for message, properties, msg_id, offset_id in zip(
                context.messages, context.properties, ids, offset_ids, strict=False
            )
        ]
        self._dispatcher.append(
            TraceContext(
                TraceType.PUB,
                context.group,
                beans,
                timestamp=context.began_ms,
                region_id=(result.region_id if result is not None else "") or DEFAULT_REGION,
                cost_time_ms=max(0, now_ms() - context.began_ms),
                success=result is None or result.status is SendStatus.SEND_OK,
            )
        )


def message_type(properties: dict[str, str]) -> MessageType:
    """Returns the kind of a message, derived from its properties."""
    if any(name in properties for name in DELAYS):
        return MessageType.DELAY
    if properties.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.NORMAL
