"""Send hooks and message traces."""

from __future__ import annotations

import pytest
from scripted_producer import ProducerBroker, producer_over

from gantrymq.client.admin.trace import decode_trace
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
    async with producer_over(broker, send_hooks=[recorder], linger=30) as producer:
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


async def test_one_way_sends_have_hooks_and_traces() -> None:
    broker, recorder = ProducerBroker(), Recorder()
    async with producer_over(broker, topics=TOPICS, send_hooks=[recorder], enable_trace=True) as producer:
        await producer.send_oneway(MESSAGE)
        (context,) = recorder.contexts
        assert (context.result, context.error, context.oneway, context.address) == (None, None, True, broker.address)
        assert context.client_id == producer.client.client_id
    sent, traced = broker.sent
    assert sent.properties["added"] == "by hook"
    assert sent.properties["UNIQ_KEY"] == context.msg_id
    (view,) = decode_trace(traced.body, "")
    assert (view.msg_id, view.topic, view.success, view.store_host) == (context.msg_id, "topic", True, broker.address)


def as_java_reads(body: bytes) -> dict[str, list[str]]:
    """Returns the fields of each send by message id, as Java's `TraceDataEncoder` and `TraceView` read them."""
    found = {}
    for line in body.decode().rstrip("\x02").split("\x02"):
        # Java's split removes empty fields at the end.
        fields = line.rstrip("\x01").split("\x01")
        assert fields[0] == "Pub"
        assert len(fields) == 14
        for number in (1, 9, 10, 11):
            int(fields[number])
        assert fields[13] in ("true", "false")
        found[fields[5]] = fields
    return found


async def test_traces_are_what_javas_reader_expects() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, topics=TOPICS, enable_trace=True) as producer:
        await producer.send_oneway(MESSAGE)
        batch = await producer.send_batch([Message("topic", bytes(n), tags=f"t{n}") for n in range(1, 4)])
    oneway, _, traced = broker.sent
    found = as_java_reads(traced.body)
    assert list(found) == [oneway.properties["UNIQ_KEY"], *batch.msg_id.split(",")]
    assert found.keys() == set(traced.properties["KEYS"].split()) - {"k1", "k2"}
    # Java's reader finds a line only by the whole message id.
    for size, msg_id, offset_id in zip(
        range(1, 4), batch.msg_id.split(","), batch.offset_msg_id.split(","), strict=True
    ):
        fields = found[msg_id]
        assert fields[3:10] == ["producers", "topic", msg_id, f"t{size}", "", broker.address, str(size)]
        assert fields[12:] == [offset_id, "true"]


async def test_the_traces_of_a_large_batch_have_room_for_their_keys() -> None:
    """The trace of a batch has one key per message. A thousand keys exceed the size limit of properties."""
    broker = ProducerBroker()
    async with producer_over(broker, topics=TOPICS, enable_trace=True, compress_over=1 << 22) as producer:
        batch = await producer.send_batch([Message("topic", b"x")] * 1500)
    found: set[str] = set()
    for traced in broker.sent[1:]:
        ids = as_java_reads(traced.body).keys()
        assert ids == set(traced.properties["KEYS"].split())
        found |= ids
    assert found == set(batch.msg_id.split(","))


async def test_keys_that_would_fill_a_trace_are_no_keys_of_it() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, topics=TOPICS, enable_trace=True, compress_over=1 << 22) as producer:
        sent = await producer.send(Message("topic", b"x", keys="k" * 32_000))
    traced = broker.sent[1]
    assert traced.properties["KEYS"] == sent.msg_id
    assert as_java_reads(traced.body)[sent.msg_id][7] == "k" * 32_000
