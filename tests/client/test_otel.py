"""Spans and metrics follow OpenTelemetry's conventions for messaging. Uses the SDK's in-memory exporters."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest
from broken_records import LogBroker, good
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from scripted import ScriptedNameServer, route_over, serving
from scripted_producer import ProducerBroker, producer_over
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.otel import OpenTelemetryMiddleware, context_of
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.remoting.address import parse_address

MESSAGE = Message("topic", b"body", tags="tag", keys=["k1", "k2"])


class Telemetry:
    """The middleware and its exporters."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.middleware = OpenTelemetryMiddleware(self.tracer_provider, MeterProvider([self._reader]))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def metric(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        """Returns the points of a metric by their attributes: numbers, or a histogram's count."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            frozenset((point.attributes or {}).items()): getattr(point, "value", None) or getattr(point, "count", 0)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def test_a_send(telemetry: Telemetry) -> None:
    broker = ProducerBroker()
    async with producer_over(broker, middleware=[telemetry.middleware]) as producer:
        result = await producer.send(MESSAGE)
        client_id = producer.client.client_id
    host, port = parse_address(broker.address)
    span = telemetry.span("send topic")
    assert span.kind is SpanKind.PRODUCER
    assert dict(attributes(span)) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "topic",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.client.id": client_id,
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "tag",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "server.address": host,
        "server.port": port,
    }
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in broker.sent[0].properties["traceparent"]
    (point,) = telemetry.metric("messaging.client.operation.duration").items()
    assert point[1] == 1
    assert ("server.port", port) in point[0]
    assert sum(telemetry.metric("messaging.client.sent.messages").values()) == 1
    assert sum(telemetry.metric("gantrymq.client.messages.in_flight").values()) == 0


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("topic", b"x", delay_level=3), "delay"),
        (Message("topic", b"x", sharding_key="order-17"), "fifo"),
        (Message("topic", b"x", properties={"TRAN_MSG": "true"}), "transaction"),
    ],
)
async def test_the_kind_of_a_message(telemetry: Telemetry, message: Message, kind: str) -> None:
    async with producer_over(ProducerBroker(), middleware=[telemetry.middleware]) as producer:
        await producer.send(message)
    assert attributes(telemetry.span("send topic"))["messaging.rocketmq.message.type"] == kind


async def test_a_one_way_send(telemetry: Telemetry) -> None:
    broker = ProducerBroker()
    async with producer_over(broker, middleware=[telemetry.middleware]) as producer:
        await producer.send_oneway(MESSAGE)
        await until(lambda: broker.sent)
    span = telemetry.span("send topic")
    assert attributes(span)["messaging.message.id"] == broker.sent[0].properties["UNIQ_KEY"]
    assert attributes(span)["server.port"] == parse_address(broker.address)[1]
    assert "traceparent" in broker.sent[0].properties


async def test_a_batch_is_linked_to_its_messages(telemetry: Telemetry) -> None:
    broker = ProducerBroker()
    async with producer_over(broker, middleware=[telemetry.middleware]) as producer:
        await producer.send_batch([MESSAGE, MESSAGE])
    created = [span for span in telemetry.spans if span.name == "create topic"]
    span = telemetry.span("send topic")
    assert [link.context.span_id for link in span.links] == [one.context.span_id for one in created]
    assert {one.kind for one in created} == {SpanKind.PRODUCER}
    assert span.kind is SpanKind.CLIENT
    assert attributes(span)["messaging.batch.message_count"] == 2
    for one in created:
        assert f"{one.context.span_id:016x}".encode() in broker.sent[0].body
    assert sum(telemetry.metric("messaging.client.sent.messages").values()) == 2


async def test_a_send_that_is_refused(telemetry: Telemetry) -> None:
    broker = ProducerBroker(answer=ResponseCode.MESSAGE_ILLEGAL)
    async with producer_over(broker, middleware=[telemetry.middleware]) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)
    span = telemetry.span("send topic")
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]
    assert attributes(span)["error.type"] == "MESSAGE_ILLEGAL"
    assert attributes(span)["server.port"] == parse_address(broker.address)[1]
    (point,) = telemetry.metric("messaging.client.operation.duration")
    assert ("error.type", "MESSAGE_ILLEGAL") in point


def with_parent(offset: int) -> tuple[bytes, str]:
    """Returns a stored message with a trace context, and the span id of this context."""
    span_id = f"{offset + 1:016x}"
    record = good(offset, properties=b"traceparent\x0100-%032x-%s-01\x02" % (7, span_id.encode()))
    return record, span_id


class Topic:
    """A NameServer, and a broker with three messages."""

    def __init__(self) -> None:
        made = [with_parent(offset) for offset in range(3)]
        self.span_ids = [span_id for _, span_id in made]
        self.broker, self.name_server = LogBroker([record for record, _ in made]), ScriptedNameServer({})

    def route(self) -> str:
        self.name_server.routes["topic"] = route_over({"broker": self.broker.address}, queue_nums=1)
        return self.name_server.address


async def test_a_handler_is_below_the_send(telemetry: Telemetry) -> None:
    topic, handled = Topic(), 0

    async def handle(message: MessageExt) -> None:
        nonlocal handled
        tracer = otel_trace.get_tracer("test", tracer_provider=telemetry.tracer_provider)
        with tracer.start_as_current_span("in handler"):
            handled += 1
        if message.queue_offset == 1:
            raise ValueError("handler")

    async with serving([topic.name_server, topic.broker]):
        consumer = PushConsumer(
            topic.route(), "group", handle, middleware=[telemetry.middleware], start_from="earliest"
        )
        consumer.subscribe("topic")
        telemetry.middleware.observe(consumer)
        async with consumer:
            await until(lambda: handled == 3)
            await until(lambda: topic.broker.sent_back)
            # The response to a send-back removes the message.
            await until(lambda: consumer.lag() and not any(consumer.lag().values()))
            (lag,) = [value for point, value in telemetry.metric("gantrymq.consumer.lag").items()]
            assert lag == 0
    processed = sorted(
        (span for span in telemetry.spans if span.name == "process topic"),
        key=lambda span: str(attributes(span)["messaging.message.id"]),
    )
    assert [f"{span.parent.span_id:016x}" for span in processed if span.parent] == topic.span_ids
    assert {span.kind for span in processed} == {SpanKind.CONSUMER}
    assert [span.status.is_ok for span in processed] == [True, False, True]
    assert attributes(processed[1])["error.type"] == "ValueError"
    for span in processed:
        assert attributes(span)["messaging.consumer.group.name"] == "group"
        assert attributes(span)["server.address"] == "127.0.0.1"
        assert attributes(span)["server.port"] == 10911
        assert attributes(span)["messaging.client.id"]
    inner = [span for span in telemetry.spans if span.name == "in handler"]
    assert {span.parent.span_id for span in inner if span.parent} == {span.context.span_id for span in processed}
    assert sum(telemetry.metric("messaging.process.duration").values()) == 3
    assert sum(telemetry.metric("messaging.client.consumed.messages").values()) == 3
    assert sum(telemetry.metric("gantrymq.client.messages.in_flight").values()) == 0


@pytest.mark.parametrize("kind", ["lite", "simple"])
async def test_what_is_asked_for_is_linked_to_its_messages(telemetry: Telemetry, kind: str) -> None:
    topic = Topic()
    async with serving([topic.name_server, topic.broker]):
        address = topic.route()
        consumer: LitePullConsumer | SimpleConsumer
        if kind == "lite":
            consumer = LitePullConsumer(address, "group", middleware=[telemetry.middleware], start_from="earliest")
            telemetry.middleware.observe(consumer)
        else:
            consumer = SimpleConsumer(address, "group", middleware=[telemetry.middleware])
        consumer.subscribe("topic")
        async with consumer:
            if isinstance(consumer, LitePullConsumer):
                messages = await consumer.poll(timeout=20)
            else:
                messages = await consumer.receive()
    span = telemetry.span("receive topic")
    assert span.kind is SpanKind.CLIENT
    assert [f"{link.context.span_id:016x}" for link in span.links] == topic.span_ids
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert attributes(span)["messaging.consumer.group.name"] == "group"
    assert sum(telemetry.metric("messaging.client.consumed.messages").values()) == 3
    parent = otel_trace.get_current_span(context_of(messages[0])).get_span_context()
    assert f"{parent.span_id:016x}" == topic.span_ids[0]


async def test_a_consumer_that_is_gone_has_no_lag(telemetry: Telemetry) -> None:
    consumer = LitePullConsumer("127.0.0.1:9876", "group")
    telemetry.middleware.observe(consumer)
    assert consumer.lag() == {}
    del consumer
    gc.collect()
    assert telemetry.metric("gantrymq.consumer.lag") == {}
