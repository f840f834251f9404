"""Middleware around sends, and message traces."""

from __future__ import annotations

import pytest
from scripted_producer import ProducerBroker, producer_over

from gantrymq.client.admin.trace import decode_trace
from gantrymq.client.broker_api import SendResult
from gantrymq.client.middleware import Middleware, SendCall, SendContext
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message

MESSAGE = Message("topic", b"body", tags="tag", keys=["k1", "k2"])
TOPICS = ("topic", "RMQ_SYS_TRACE_TOPIC")


class Recorder(Middleware):
    def __init__(self) -> None:
        self.contexts: list[SendContext] = []
        self.outcomes: list[object] = []

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        self.contexts.append(context)
        for message in context.messages:
            message.properties["added"] = "by middleware"
        try:
            result = await call(context)
        except BaseException as e:
            self.outcomes.append(e)
            raise
        self.outcomes.append(result)
        return result


class Broken(Middleware):
    """Raises before or after the send."""

    def __init__(self, before: bool) -> None:
        self._before = before

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        if self._before:
            raise ValueError("before")
        await call(context)
        raise ValueError("after")


async def test_middleware_sees_every_send_and_changes_its_properties() -> None:
    broker, outer, inner = ProducerBroker(), Recorder(), Recorder()
    async with producer_over(broker, middleware=[outer, Middleware(), inner]) as producer:
        single = await producer.send(MESSAGE)
        batch = await producer.send_batch([MESSAGE, MESSAGE])
        broker.answer = ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError) as refused:
            await producer.send(MESSAGE)
        address = broker.address
    assert outer.contexts == inner.contexts
    assert outer.outcomes == inner.outcomes == [single, batch, refused.value]
    assert [context.address for context in outer.contexts] == [address] * 3
    assert [len(context.messages) for context in outer.contexts] == [1, 2, 1]
    assert {context.group for context in outer.contexts} == {"producers"}
    assert broker.sent[0].properties["added"] == "by middleware"
    assert b"by middleware" in broker.sent[1].body
    assert MESSAGE.properties == {"TAGS": "tag", "KEYS": "k1 k2"}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("linger", [0, 0.001])
async def test_a_send_raises_the_errors_of_its_middleware(before: bool, linger: float) -> None:
    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Broken(before)], linger=linger) as producer:
        with pytest.raises(ValueError, match="before" if before else "after"):
            await producer.send(MESSAGE)
    assert len(broker.sent) == (0 if before else 1)


@pytest.mark.parametrize("linger", [0, 0.001])
async def test_middleware_must_return_the_result(linger: float) -> None:
    class Forgets(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            await call(context)
            return None

    outer = Recorder()
    async with producer_over(ProducerBroker(), middleware=[outer, Forgets(), Recorder()], linger=linger) as producer:
        with pytest.raises(ClientError, match=r"Forgets\.around_send returned None: it must return"):
            await producer.send(MESSAGE)
        await producer.send_oneway(MESSAGE)
    assert [type(outcome) for outcome in outer.outcomes] == [ClientError, type(None)]


async def test_middleware_must_pass_on_its_context() -> None:
    class Replaces(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            return await call(SendContext(group="own", client_id="own", messages=context.messages))

    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Replaces()]) as producer:
        with pytest.raises(ClientError, match="pass on the context of `around_send`"):
            await producer.send(MESSAGE)
    assert broker.sent == []


@pytest.mark.parametrize("linger", [0.0, 0.001])
async def test_middleware_must_leave_a_message(linger: float) -> None:
    class Removing(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            context.messages = ()
            return await call(context)

    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Removing()], linger=linger) as producer:
        with pytest.raises(ClientError, match="removed all messages"):
            await producer.send(MESSAGE)
    assert not broker.sent


async def test_middleware_sees_messages_of_automatic_batches_one_by_one() -> None:
    broker, recorder = ProducerBroker(), Recorder()
    async with producer_over(broker, middleware=[recorder], linger=30) as producer:
        futures = [await producer.enqueue(MESSAGE) for _ in range(3)]
        await producer.close()
        results = [await future for future in futures]
    assert len(broker.sent) == 1
    assert recorder.outcomes == results
    assert broker.sent[0].body.count(b"by middleware") == 3


async def test_a_batch_without_space_waits_with_middleware() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Recorder()], linger=0.001, buffer_bytes=100) as producer:
        futures = [await producer.enqueue(Message("topic", b"x" * 60)) for _ in range(5)]
        assert [(await future).status.name for future in futures] == ["SEND_OK"] * 5
    assert len(broker.sent) > 1


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


async def test_one_way_sends_have_middleware_and_traces() -> None:
    broker, recorder = ProducerBroker(), Recorder()
    async with producer_over(broker, topics=TOPICS, middleware=[recorder], enable_trace=True) as producer:
        await producer.send_oneway(MESSAGE)
        (context,) = recorder.contexts
        assert recorder.outcomes == [None]
        assert (context.oneway, context.address) == (True, broker.address)
        assert context.client_id == producer.client.client_id
    sent, traced = broker.sent
    assert sent.properties["added"] == "by middleware"
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
