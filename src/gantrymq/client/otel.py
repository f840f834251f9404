"""Spans for messages, and the trace that goes with them: the extra `gantrymq[otel]`.

    hook = OpenTelemetryHook()
    Producer(..., send_hooks=[hook])
    PushConsumer(..., consume_hooks=[hook])

A send is a PRODUCER span, a handler's run a CONSUMER span below it, in whatever process. What joins them travels in the
message's properties (`traceparent`, by the W3C's propagator, or whatever propagator is set). Names are those of
OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from gantrymq.client.consuming.consume_hooks import ConsumeContext
from gantrymq.client.producing.send_hook import SendContext
from gantrymq.protocol.message import Message

_SPAN = "opentelemetry.span"
_TOKEN = "opentelemetry.token"


class OpenTelemetryHook:
    """A send hook and a consume hook in one. Without `tracer_provider` the global one is used."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("gantrymq", tracer_provider=tracer_provider)

    def before_send(self, context: SendContext) -> None:
        first = context.messages[0]
        attributes = _attributes("send", first, context.group)
        if len(context.messages) > 1:
            attributes["messaging.batch.message_count"] = len(context.messages)
        span = self._tracer.start_span(f"send {first.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        context.attributes[_SPAN] = span
        for properties in context.properties:
            propagate.inject(properties, context=trace.set_span_in_context(span))

    def after_send(self, context: SendContext) -> None:
        span: Span = context.attributes[_SPAN]
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.msg_id)
            span.set_attribute("messaging.rocketmq.queue.id", context.result.queue.queue_id)
        if context.address:
            span.set_attribute("server.address", context.address)
        _end(span, context.error)

    def before(self, context: ConsumeContext) -> None:
        message = context.message
        parent = propagate.extract(message.properties)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                **_attributes("process", message, context.group),
                "messaging.consumer.group.name": context.group,
                "messaging.message.id": message.msg_id,
            },
        )
        context.attributes[_SPAN] = span
        # Spans that the handler makes are below this one.
        context.attributes[_TOKEN] = otel_context.attach(trace.set_span_in_context(span, parent))

    def after(self, context: ConsumeContext) -> None:
        otel_context.detach(context.attributes[_TOKEN])
        _end(context.attributes[_SPAN], context.error)


def _attributes(operation: str, message: Message, group: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.client_group": group,
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys
    return attributes


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
