"""Send hooks, message traces and OpenTelemetry's spans."""

from __future__ import annotations

import pytest
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from records import message_at
from scripted_producer import ProducerBroker, producer_over

from gantrymq.client.admin.trace import decode_trace
from gantrymq.client.consuming.consume_hooks import ConsumeContext
from gantrymq.client.otel import OpenTelemetryHook
from gantrymq.client.producing.send_hook import SendContext
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message

MESSAGE = Message("topic", b"body", tags="tag", keys=["k1", "k2"])
TOPICS = ("topic", "RMQ_SYS_TRACE_TOPIC")


class Recorder:
    def __init__(self) -> None:
        self.contexts: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        for properties in context.properties:
            properties["added"] = "by hook"

    def after_send(self, context: SendContext) -> None:
        self.contexts.append(context)


class Broken:
    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("before")

    def after_send(self, context: SendContext) -> None:
        raise RuntimeError("after")


async def test_hooks_see_every_send_and_change_its_properties(caplog: pytest.LogCaptureFixture) -> None:
    broker, recorder = ProducerBroker(), Recorder()
    async with producer_over(broker, send_hooks=[Broken(), recorder]) as producer:
        single = await producer.send(MESSAGE)
        batch = await producer.send_batch([MESSAGE, MESSAGE])
        broker.answer = ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)
        address = broker.address
    assert [context.result for context in recorder.contexts] == [single, batch, None]
    assert isinstance(recorder.contexts[2].error, BrokerError)
    assert [context.address for context in recorder.contexts] == [address] * 3
    assert {context.group for context in recorder.contexts} == {"producers"}
    assert broker.sent[0].properties["added"] == "by hook"
    assert b"by hook" in broker.sent[1].body
    assert MESSAGE.properties == {"TAGS": "tag", "KEYS": "k1 k2"}
    assert "before" in caplog.text
    assert "after" in caplog.text


async def test_hooks_see_messages_of_automatic_batches_one_by_one() -> None:
    broker, recorder = ProducerBroker(), Recorder()
    async with producer_over(broker, send_hooks=[recorder], linger_ms=30_000) as producer:
        futures = [await producer.enqueue(MESSAGE) for _ in range(3)]
        await producer.close()
        results = [await future for future in futures]
    assert len(broker.sent) == 1
    assert [context.result for context in recorder.contexts] == results


async def test_sends_are_traced() -> None:
    broker = ProducerBroker()
    broker.more = {"MSG_REGION": "region"}
    async with producer_over(broker, topics=TOPICS, enable_trace=True) as producer:
        result = await producer.send(MESSAGE)
        address = broker.address
    traced = broker.sent[1]
    assert traced.header.topic == "RMQ_SYS_TRACE_TOPIC"
    assert traced.properties["KEYS"].split() == sorted([result.msg_id, "k1", "k2"])
    (view,) = decode_trace(traced.body, "")
    assert (view.msg_id, view.group, view.topic, view.tags) == (result.msg_id, "producers", "topic", "tag")
    assert (view.store_host, view.success) == (address, True)
    assert traced.body.split(b"\x01")[2] == b"region"
    assert len(broker.sent) == 2


async def test_a_broker_may_switch_traces_off() -> None:
    broker = ProducerBroker()
    broker.more = {"TRACE_ON": "false"}
    async with producer_over(broker, topics=TOPICS, enable_trace=True) as producer:
        await producer.send(MESSAGE)
    assert len(broker.sent) == 1


async def test_failed_sends_are_not_traced() -> None:
    broker = ProducerBroker(answer=ResponseCode.MESSAGE_ILLEGAL)
    async with producer_over(broker, topics=TOPICS, enable_trace=True) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)
    assert len(broker.sent) == 1


async def test_spans_reach_from_producer_to_consumer() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook, broker = OpenTelemetryHook(provider), ProducerBroker()
    async with producer_over(broker, send_hooks=[hook]) as producer:
        result = await producer.send(MESSAGE)
        await producer.send_batch([MESSAGE, MESSAGE])
        broker.answer = ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)

    received = message_at(7)
    received.properties.update(broker.sent[0].properties)
    context = ConsumeContext("consumers", received)
    hook.before(context)
    with otel_trace.get_tracer("test", tracer_provider=provider).start_as_current_span("in handler"):
        pass
    context.error = ValueError("handler")
    hook.after(context)

    send, batch, failed, in_handler, process = exporter.get_finished_spans()
    assert [span.name for span in (send, batch, failed, process)] == ["send topic"] * 3 + ["process t"]
    assert send.attributes
    assert send.attributes["messaging.message.id"] == result.msg_id
    assert batch.attributes
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert broker.sent[1].body.count(b"traceparent") == 2
    assert not failed.status.is_ok
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert process.context.trace_id == send.context.trace_id
    assert in_handler.parent is not None
    assert in_handler.parent.span_id == process.context.span_id
    assert not process.status.is_ok
    assert [event.name for event in process.events] == ["exception"]
