"""OpenTelemetry: spans and metrics for sent, received and handled messages. Needs the extra `gantrymq[otel]`.

    telemetry = OpenTelemetryMiddleware()
    Producer(..., middleware=[telemetry])
    PushConsumer(..., middleware=[telemetry])     # and the other consumers

Spans:
- A send is a PRODUCER span. The run of a handler is a CONSUMER span below it, also in another process.
- The trace context travels in the properties of the message (`traceparent` with the default W3C propagator).
- Each message of a batch has a span "create". The span of the send has links to these spans.
- The span of a `poll` or `receive` has links to the spans of its messages. `context_of` returns a message's context.

Names follow OpenTelemetry's semantic conventions for messaging, 1.4x. Other names start with gantrymq.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

from gantrymq.extras import missing

try:
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as e:
    raise missing("otel", "gantrymq.client.otel", e) from e

from gantrymq.client.broker_api import SendResult
from gantrymq.client.middleware import (
    ConsumeCall,
    ConsumeContext,
    Middleware,
    ReceiveCall,
    ReceiveContext,
    SendCall,
    SendContext,
)
from gantrymq.client.trace import MessageType
from gantrymq.client.trace_middleware import message_type
from gantrymq.errors import BrokerError
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.remoting.address import parse_address
from gantrymq.system.clock import monotonic, time_ns

Attributes = dict[str, AttributeValue]

_MESSAGE_TYPES = {MessageType.DELAY: "delay", MessageType.TRANSACTION_HALF: "transaction"}


class Lagging(Protocol):
    """A consumer whose lag can be observed."""

    group: str

    def lag(self) -> dict[MessageQueue, int]:
        """Returns the number of stored messages that are not consumed, by queue."""


class OpenTelemetryMiddleware(Middleware):
    """Middleware that creates the spans and metrics. By default, it uses the global providers."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("gantrymq", tracer_provider=tracer_provider)
        meter = metrics.get_meter("gantrymq", meter_provider=meter_provider)
        self._operation_duration = meter.create_histogram("messaging.client.operation.duration", "s")
        self._process_duration = meter.create_histogram("messaging.process.duration", "s")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._in_flight = meter.create_up_down_counter("gantrymq.client.messages.in_flight", "{message}")
        self._consumers: weakref.WeakSet[Lagging] = weakref.WeakSet()
        meter.create_observable_gauge("gantrymq.consumer.lag", [self._lags], "{message}")

    def observe(self, consumer: Lagging) -> None:
        """Adds the lag of a push or lite pull consumer to the metrics, until the consumer is garbage-collected."""
        self._consumers.add(consumer)

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        first, count = context.messages[0], len(context.messages)
        attributes = _of_message("send", first, context.client_id)
        links: list[Link] = []
        if count > 1:
            attributes = _common("send", first.topic, context.client_id)
            attributes["messaging.batch.message_count"] = count
            links = [self._created(message, context.client_id) for message in context.messages]
        span = self._tracer.start_span(
            f"send {first.topic}",
            kind=SpanKind.CLIENT if links else SpanKind.PRODUCER,
            attributes=attributes,
            links=links,
        )
        if not links:
            propagate.inject(first.properties, context=trace.set_span_in_context(span))
        began = monotonic()
        self._in_flight.add(count, _of_metric("send", first.topic))
        error: BaseException | None = None
        try:
            result = await call(context)
            if result is not None:
                span.set_attribute("messaging.message.id", result.msg_id)
                span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
            elif context.msg_id:
                span.set_attribute("messaging.message.id", context.msg_id)
            return result
        except BaseException as e:
            error = e
            raise
        finally:
            server = _server(context.address)
            span.set_attributes(server)
            self._in_flight.add(-count, _of_metric("send", first.topic))
            outcome = _of_metric("send", first.topic) | server | _end(span, error)
            self._operation_duration.record(monotonic() - began, outcome)
            self._sent.add(count, outcome)

    def _created(self, message: Message, client_id: str) -> Link:
        """Creates the span of one message of a batch and adds its context to the message's properties."""
        span = self._tracer.start_span(
            f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=_of_message("create", message, client_id)
        )
        propagate.inject(message.properties, context=trace.set_span_in_context(span))
        span.end()
        return Link(span.get_span_context())

    async def around_consume(self, call: ConsumeCall, context: ConsumeContext) -> None:
        message = context.message
        parent = context_of(message)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                **_of_message("process", message, context.client_id),
                **_of_received(message),
                "messaging.consumer.group.name": context.group,
            },
        )
        began, metric = monotonic(), _of_metric("process", message.topic, context.group)
        # Makes the handler's own spans children of this span.
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        self._in_flight.add(1, metric)
        error: BaseException | None = None
        try:
            await call(context)
        except BaseException as e:
            error = e
            raise
        finally:
            otel_context.detach(token)
            self._in_flight.add(-1, metric)
            outcome = metric | _server(message.store_host) | _end(span, error)
            self._process_duration.record(monotonic() - began, outcome)
            self._consumed.add(1, outcome)

    async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
        began_ns, began = time_ns(), monotonic()
        messages: list[MessageExt] = []
        error: BaseException | None = None
        try:
            messages = await call(context)
            return messages
        except BaseException as e:
            error = e
            raise
        finally:
            self._received(context, messages, began_ns, monotonic() - began, error)

    def _received(
        self,
        context: ReceiveContext,
        messages: Sequence[MessageExt],
        began_ns: int,
        duration_s: float,
        error: BaseException | None,
    ) -> None:
        topics = {message.topic for message in messages} or set(context.topics)
        topic = topics.pop() if len(topics) == 1 else ""
        attributes = _common("receive", topic, context.client_id)
        attributes["messaging.consumer.group.name"] = context.group
        attributes["messaging.batch.message_count"] = len(messages)
        contexts = [trace.get_current_span(context_of(message)).get_span_context() for message in messages]
        span = self._tracer.start_span(
            f"receive {topic}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(link) for link in contexts if link.is_valid],
            start_time=began_ns,
        )
        outcome = _of_metric("receive", topic, context.group) | _end(span, error)
        self._operation_duration.record(duration_s, outcome)
        if messages:
            self._consumed.add(len(messages), outcome)

    def _lags(self, options: CallbackOptions) -> Iterable[Observation]:
        for consumer in list(self._consumers):
            for queue, lag in consumer.lag().items():
                attributes = _of_metric("receive", queue.topic, consumer.group)
                attributes["messaging.destination.partition.id"] = f"{queue.broker_name}:{queue.queue_id}"
                yield Observation(lag, attributes)


def context_of(message: Message) -> Context:
    """Returns the OpenTelemetry context of a received message, as parent of your own spans."""
    return propagate.extract(message.properties)


def _common(operation: str, topic: str, client_id: str) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if topic:
        attributes["messaging.destination.name"] = topic
    if client_id:
        attributes["messaging.client.id"] = client_id
    return attributes


def _of_message(operation: str, message: Message, client_id: str) -> Attributes:
    attributes = _common(operation, message.topic, client_id)
    is_fifo = names.SHARDING_KEY in message.properties
    attributes["messaging.rocketmq.message.type"] = (
        "fifo" if is_fifo else _MESSAGE_TYPES.get(message_type(message.properties), "normal")
    )
    attributes["messaging.message.body.size"] = len(
        message.stored_body if isinstance(message, MessageExt) else message.body
    )
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys
    if is_fifo:
        attributes["messaging.rocketmq.message.group"] = message.properties[names.SHARDING_KEY]
    return attributes


def _of_received(message: MessageExt) -> Attributes:
    return {
        "messaging.message.id": message.msg_id,
        "messaging.destination.partition.id": str(message.queue_id),
        **_server(message.store_host),
    }


def _of_metric(operation: str, topic: str, group: str = "") -> Attributes:
    attributes = _common(operation, topic, "")
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _server(address: str) -> Attributes:
    try:
        host, port = parse_address(address)
    except ValueError:
        return {}
    return {"server.address": host, "server.port": port}


def _end(span: Span, error: BaseException | None) -> Attributes:
    """Ends the span. Returns the attributes of the error for metrics."""
    attributes: Attributes = {}
    if error is not None:
        attributes["error.type"] = _error_type(error)
        span.record_exception(error)
        span.set_attributes(attributes)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
    return attributes


def _error_type(error: BaseException) -> str:
    if isinstance(error, BrokerError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return str(error.code)
    module = type(error).__module__
    return type(error).__qualname__ if module == "builtins" else f"{module}.{type(error).__qualname__}"


__all__: Sequence[str] = ["OpenTelemetryMiddleware", "context_of"]
