"""The send hook that traces a producer's messages (client/trace/hook/SendMessageTraceHookImpl)."""

from __future__ import annotations

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.outgoing import DELAYS
from gantrymq.client.producing.send_hook import SendContext
from gantrymq.client.trace import DEFAULT_REGION, MessageType, TraceBean, TraceContext, TraceDispatcher, TraceType
from gantrymq.protocol import properties as names
from gantrymq.system.clock import now_ms


class SendTraceHook:
    """Tells `dispatcher` of every message that a broker took; of those that failed there is no trace, as in Java.

    Of one that was sent one-way nobody knows: it counts as taken. (Java has no traces of these.)
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
        bean = TraceBean(
            topic=first.topic,
            msg_id=result.msg_id if result is not None else context.msg_id,
            offset_msg_id=result.offset_msg_id if result is not None else "",
            tags=first.tags or "",
            keys=first.properties.get(names.KEYS, ""),
            store_host=context.address,
            body_length=sum(len(message.body) for message in context.messages),
            message_type=message_type(context.properties[0]),
        )
        self._dispatcher.append(
            TraceContext(
                TraceType.PUB,
                context.group,
                [bean],
                timestamp=context.began_ms,
                region_id=(result.region_id if result is not None else "") or DEFAULT_REGION,
                cost_time_ms=max(0, now_ms() - context.began_ms),
                success=result is None or result.status is SendStatus.SEND_OK,
            )
        )


def message_type(properties: dict[str, str]) -> MessageType:
    """The kind that a message's properties make it."""
    if any(name in properties for name in DELAYS):
        return MessageType.DELAY
    if properties.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.NORMAL
