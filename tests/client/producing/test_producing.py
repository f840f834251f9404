"""Sends against a cluster."""

from __future__ import annotations

import asyncio

import pytest
from ports import free_port
from wait_until import until

from gantrymq.client.broker_api import PullStatus, SendResult, SendStatus
from gantrymq.client.middleware import Middleware, SendCall, SendContext
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import ClientError, GantryError, IllegalMessage
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.message import Message, MessageExt, MessageQueue, decode_messages


async def stored(producer: Producer, queue: MessageQueue, offset: int, count: int = 32) -> list[MessageExt]:
    """Returns the messages of a queue from `offset` on, as soon as there are `count`; at most 32."""
    address = producer.client.routes.master_address(queue.broker_name)
    assert address is not None

    async def pulled() -> list[MessageExt] | None:
        result = await producer.client.api.pull_at_once(address, queue, offset, 32, "readers")
        messages = list(decode_messages(result.body, queue.broker_name))
        return messages if result.status == PullStatus.FOUND and len(messages) >= count else None

    return await until(pulled)


async def test_what_was_sent_can_be_read(producer: Producer, topic: str) -> None:
    message = Message(topic, b"body", tags="tag", keys=["k1", "k2"], flag=5, properties={"own": "wert \u00e4"})
    result = await producer.send(message)
    assert result.status == SendStatus.SEND_OK
    assert result.queue.topic == topic
    (read,) = await stored(producer, result.queue, result.queue_offset, 1)
    assert (read.body, read.tags, read.keys, read.flag) == (b"body", "tag", ["k1", "k2"], 5)
    assert read.properties["own"] == "wert \u00e4"
    assert read.msg_id == result.msg_id
    assert read.offset_msg_id == result.offset_msg_id
    assert read.message_queue == result.queue
    assert read.queue_offset == result.queue_offset


async def test_sending_does_not_change_the_message(producer: Producer, topic: str) -> None:
    message = Message(topic, b"body", tags="tag")
    first, second = await asyncio.gather(producer.send(message), producer.send(message))
    assert message.properties == {"TAGS": "tag"}
    assert first.msg_id != second.msg_id


async def test_messages_go_to_all_queues_in_turn(producer: Producer, topic: str) -> None:
    results = [await producer.send(Message(topic, b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_queue_can_be_chosen(producer: Producer, topic: str) -> None:
    queue = (await producer.queues(topic))[2]
    for offset in range(3):
        result = await producer.send(Message(topic, b"x"), queue=queue)
        assert (result.queue, result.queue_offset) == (queue, offset)


async def test_equal_keys_go_to_one_queue(producer: Producer, topic: str) -> None:
    results = [await producer.send(Message(topic, b"x"), select=select_by_hash("order-17")) for _ in range(5)]
    assert len({result.queue for result in results}) == 1


@pytest.mark.parametrize("linger_ms", [0, 1])
async def test_a_sharding_key_selects_the_queue(name_server: str, topic: str, linger_ms: int) -> None:
    async with Producer(name_server, "producers", linger=linger_ms / 1000) as producer:
        queues = await producer.queues(topic)
        for key in ("order-17", "order-18", "order-19"):
            message = Message(topic, b"x", sharding_key=key)
            sent = [await producer.send(message), await producer.send_batch([message, message])]
            sent.append(await producer.send_alone(message))
            if linger_ms:
                sent.append(await (await producer.enqueue(message)))
            # The same queue as Java's SelectMessageQueueByHash.
            wanted = select_by_hash(key)(queues, message)
            assert [result.queue for result in sent] == [wanted] * len(sent)
            other = next(queue for queue in queues if queue != wanted)
            assert (await producer.send(message, queue=other)).queue == other
            assert (await producer.send(message, select=lambda queues, message, other=other: other)).queue == other
        by_queue = {select_by_hash(key)(queues, message): key for key in map(str, range(100))}
        mixed = [Message(topic, b"x", sharding_key=key) for key in by_queue.values()]
        with pytest.raises(ClientError, match="map to different queues"):
            await producer.send_batch(mixed)
        assert (await producer.send_batch(mixed, queue=queues[0])).queue == queues[0]
        with_one_key = [Message(topic, b"x"), Message(topic, b"x", sharding_key="order-17")]
        assert (await producer.send_batch(with_one_key)).queue == select_by_hash("order-17")(queues, with_one_key[0])


async def test_a_oneway_message_goes_to_the_queue_of_its_key(producer: Producer, topic: str) -> None:
    message = Message(topic, b"oneway", sharding_key="order-17")
    queue = select_by_hash("order-17")(await producer.queues(topic), message)
    await producer.send_oneway(message)
    (read,) = await stored(producer, queue, 0, 1)
    assert read.body == b"oneway"


async def test_middleware_sees_a_send_by_key_that_finds_no_route() -> None:
    class Errors(Middleware):
        def __init__(self) -> None:
            self.found: list[BaseException] = []

        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            try:
                return await call(context)
            except BaseException as e:
                self.found.append(e)
                raise

    errors = Errors()
    message = Message("orders", b"x", sharding_key="order-17")
    async with Producer(f"127.0.0.1:{free_port()}", "producers", middleware=[errors]) as producer:
        with pytest.raises(GantryError) as alone:
            await producer.send(message, timeout=0.5)
        with pytest.raises(GantryError) as batch:
            await producer.send_batch([message], timeout=0.5)
        with pytest.raises(GantryError) as oneway:
            await producer.send_oneway(message)
    assert errors.found == [alone.value, batch.value, oneway.value]


async def test_an_invalid_message_with_a_key_is_refused_without_a_route() -> None:
    async with Producer(f"127.0.0.1:{free_port()}", "producers") as producer:
        message = Message("orders", bytes(100_000_000), sharding_key="order-17")
        with pytest.raises(IllegalMessage):
            await producer.send(message)


async def test_a_producer_closes_while_enqueue_waits_for_the_route(name_server: str, topic: str) -> None:
    producer = Producer(name_server, "producers", linger=0.001)
    await producer.start()
    enqueued = asyncio.create_task(producer.enqueue(Message(topic, b"x", sharding_key="order-17")))
    # The task waits for the route.
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(GantryError):
        async with asyncio.timeout(10):
            await (await enqueued)


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("size", [5000, 300_000])
async def test_large_bodies_are_compressed(
    name_server: str, topic: str, compression: CompressionType, size: int
) -> None:
    body = b"0123456789" * (size // 10)
    async with Producer(name_server, "producers", compression=compression) as producer:
        result = await producer.send(Message(topic, body))
        (read,) = await stored(producer, result.queue, result.queue_offset, 1)
    assert read.body == body
    assert read.store_size < size / 5


async def test_a_batch_is_stored_in_one_piece(producer: Producer, topic: str) -> None:
    queue = (await producer.queues(topic))[1]
    messages = [Message(topic, b"m%d" % n, tags=f"t{n}") for n in range(20)]
    result = await producer.send_batch(messages, queue=queue)
    read = await stored(producer, queue, 0, 20)
    assert [message.body for message in read] == [message.body for message in messages]
    assert [message.tags for message in read] == [message.tags for message in messages]
    assert [message.queue_offset for message in read] == list(range(20))
    assert [message.msg_id for message in read] == result.msg_id.split(",")
    assert [message.offset_msg_id for message in read] == result.offset_msg_id.split(",")


async def test_oneway_messages_arrive(producer: Producer, topic: str) -> None:
    queue = (await producer.queues(topic))[3]
    for n in range(5):
        await producer.send_oneway(Message(topic, b"m%d" % n), queue)
    # Java's broker processes oneway sends in several threads.
    assert sorted(message.body for message in await stored(producer, queue, 0, 5)) == [b"m%d" % n for n in range(5)]


async def test_many_sends_at_a_time(producer: Producer, topic: str) -> None:
    results = await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(500)))
    assert len({(result.queue, result.queue_offset) for result in results}) == 500
    assert len({result.msg_id for result in results}) == 500


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("topic", b""), "empty"),
        (Message("topic", b"x" * (4 * 1024 * 1024 + 1)), "at most 4194304"),
        (Message("to pic", b"x"), "illegal characters"),
        (Message("", b"x"), "blank"),
        (Message("t" * 128, b"x"), "longer than"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "system topic"),
        (Message("topic", b"x", tags="a\x02b"), "separate"),
        (Message("topic", b"x", properties={"long": "x" * 40_000}), "properties of"),
    ],
)
async def test_what_brokers_would_refuse_is_refused_here(producer: Producer, message: Message, reason: str) -> None:
    with pytest.raises(IllegalMessage, match=reason):
        await producer.send(message)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("a", b"x", delay_level=1)], "delayed"),
        ([Message("%RETRY%g", b"x")], "retry"),
        ([Message("a", b"x" * 3_000_000)] * 2, "at most"),
    ],
)
async def test_what_can_not_go_in_a_batch_is_refused(producer: Producer, messages: list[Message], reason: str) -> None:
    with pytest.raises(IllegalMessage, match=reason):
        await producer.send_batch(messages)


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 121])
def test_illegal_groups_are_refused(group: str) -> None:
    with pytest.raises(IllegalMessage):
        Producer("127.0.0.1:9876", group)
