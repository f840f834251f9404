"""Producer options, with scripted brokers."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from constants import change_constant
from scripted import ScriptedNameServer, route_over, serving
from scripted_producer import ProducerBroker, producer_over
from wait_until import until

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash, select_by_machine_room
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectFailed,
    IllegalMessage,
    RequestTimeout,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.message import Message, MessageQueue

MESSAGE = Message("topic", b"body")


# -- attempts -------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_not_safe_goes_to_another_broker_if_wanted() -> None:
    good, unsafe = ProducerBroker("good"), ProducerBroker("unsafe", ResponseCode.FLUSH_DISK_TIMEOUT)
    async with producer_over(good, unsafe, retry_when_not_stored_safely=True) as producer:
        for _ in range(4):
            assert (await producer.send(MESSAGE)).queue.broker_name == "good"
    assert unsafe.sent


async def test_the_last_try_counts_if_none_is_safe() -> None:
    unsafe = ProducerBroker("unsafe", ResponseCode.SLAVE_NOT_AVAILABLE)
    async with producer_over(unsafe, retry_when_not_stored_safely=True) as producer:
        assert (await producer.send(MESSAGE)).status is SendStatus.SLAVE_NOT_AVAILABLE
    assert len(unsafe.sent) == 3


async def test_a_silent_broker_leaves_time_for_another() -> None:
    good, silent = ProducerBroker("good"), ProducerBroker("silent", None)
    async with producer_over(good, silent, try_timeout=0.1) as producer:
        for _ in range(4):
            assert (await producer.send(MESSAGE, timeout=5)).queue.broker_name == "good"
    assert silent.sent


async def test_connecting_takes_of_the_timeout() -> None:
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # The kernel accepts no more connections when the backlog is full.
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        name_server = ScriptedNameServer({"topic": route_over({"b": f"127.0.0.1:{full.getsockname()[1]}"})})
        async with serving([name_server]), Producer(name_server.address, "producers") as producer:
            began = time.monotonic()
            with pytest.raises((ConnectFailed, RequestTimeout)):
                await producer.send(MESSAGE, timeout=0.3)
            assert 0.25 < time.monotonic() - began < 2


# -- brokers that are slow or fail ----------------------------------------------------------------------------------


async def test_a_failed_broker_is_left_alone_for_a_while() -> None:
    good, bad = ProducerBroker("good"), ProducerBroker("bad", ResponseCode.SYSTEM_BUSY)
    async with producer_over(good, bad, send_latency_fault_enable=True) as producer:
        for _ in range(20):
            assert (await producer.send(MESSAGE)).queue.broker_name == "good"
    assert len(bad.sent) == 1


async def test_a_failed_broker_is_better_than_none() -> None:
    bad = ProducerBroker("bad", ResponseCode.SYSTEM_BUSY)
    async with producer_over(bad, send_latency_fault_enable=True) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)
        bad.answer = ResponseCode.SUCCESS
        assert (await producer.send(MESSAGE)).queue.broker_name == "bad"


async def test_the_detector_brings_a_broker_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("latency_fault", "sender"):
        monkeypatch.setattr(f"gantrymq.client.producing.{module}.DETECT_INTERVAL_MS", 10)
    # Only reachability excludes the broker here, not its penalty.
    change_constant(monkeypatch, "latency_fault.NOT_AVAILABLE_DURATION_MS", (0,) * 7)
    good, bad = ProducerBroker("good"), ProducerBroker("bad", ResponseCode.SYSTEM_BUSY)
    async with producer_over(good, bad, send_latency_fault_enable=True, start_detector_enable=True) as producer:
        while not bad.sent:
            await producer.send(MESSAGE)
        faults = producer.sender.faults
        assert faults is not None
        assert not faults.is_reachable("bad")
        bad.answer = ResponseCode.SUCCESS
        await until(lambda: faults.is_reachable("bad"))


# -- names ----------------------------------------------------------------------------------------------------------


async def test_a_namespace_is_the_brokers_affair_only() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, topics=("ns%topic",), namespace="ns") as producer:
        result = await producer.send(MESSAGE)
        assert result.queue.topic == "topic"
        queues = await producer.queues("topic")
        assert {queue.topic for queue in queues} == {"topic"}
        await producer.send(MESSAGE, queue=queues[1])
        await producer.send_batch([MESSAGE] * 2, queue=queues[1])
        await producer.send_oneway(MESSAGE, queues[1])
        await until(lambda: len(broker.sent) == 4)
    assert {(sent.header.topic, sent.header.producer_group) for sent in broker.sent} == {("ns%topic", "ns%producers")}
    assert broker.sent[0].properties["INSTANCE_ID"] == "ns"
    assert [sent.header.queue_id for sent in broker.sent[1:]] == [1, 1, 1]


async def test_an_order_topic_has_the_queues_of_its_configuration() -> None:
    broker, name_server = ProducerBroker("broker"), ScriptedNameServer({})
    async with serving([name_server, broker]), Producer(name_server.address, "producers") as producer:
        route = name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=8)
        route.order_topic_conf = "broker:2;gone:1;"
        queues = await producer.queues("topic")
        assert [(queue.broker_name, queue.queue_id) for queue in queues] == [("broker", 0), ("broker", 1), ("gone", 0)]
        await producer.send(MESSAGE, queue=queues[1])
        # Messages to this queue wait for its broker. They are not sent to another one.
        with pytest.raises(BrokerUnavailable, match="broker gone"):
            await producer.send(MESSAGE, timeout=0.2, queue=queues[2])


@pytest.mark.parametrize("configuration", ["broker", "broker:x", ":4", "broker:-1", "broker:99999999999"])
async def test_an_unreadable_order_configuration_is_an_error(configuration: str) -> None:
    name_server = ScriptedNameServer({"topic": route_over({"broker": "127.0.0.1:1"})})
    name_server.routes["topic"].order_topic_conf = configuration
    async with serving([name_server]), Producer(name_server.address, "producers") as producer:
        with pytest.raises(ClientError, match="order configuration"):
            await producer.send(MESSAGE)


async def test_queues_by_machine_room() -> None:
    near, far = ProducerBroker("east@a"), ProducerBroker("west@a")
    async with producer_over(near, far) as producer:
        for _ in range(10):
            await producer.send(MESSAGE, select=select_by_machine_room({"east"}))
        with pytest.raises(ClientError, match="north"):
            await producer.send(MESSAGE, select=select_by_machine_room({"north"}))
    assert len(near.sent) == 10


async def test_a_selector_must_pick_a_queue() -> None:
    broker = ProducerBroker()
    async with producer_over(broker) as producer:
        queue, *_ = await producer.queues(MESSAGE.topic)
        wrong: list[Any] = [
            *(None, 0, "broker-a", tuple(queue), [queue]),
            queue._replace(queue_id=-1),
            queue._replace(queue_id=99),
            queue._replace(broker_name="lost"),
            queue._replace(topic="Other"),
        ]
        for value in wrong:
            with pytest.raises(ClientError, match="no writable queue of topic") as failed:
                await producer.send(MESSAGE, select=lambda queues, message, value=value: value)
            assert repr(value) in str(failed.value)
        with pytest.raises(ClientError, match="IndexError") as failed:
            await producer.send(MESSAGE, select=lambda queues, message: queues[99])
        assert isinstance(failed.value.__cause__, IndexError)
        with pytest.raises(ClientError, match="queue and select exclude each other"):
            await producer.send(MESSAGE, queue=queue, select=select_by_hash("key"))
    assert not broker.sent


@pytest.mark.parametrize("namespace", ["", "ns"])
async def test_the_group_that_java_gives_to_those_who_name_none_is_refused(namespace: str) -> None:
    producer = Producer("127.0.0.1:9876", "DEFAULT_PRODUCER", namespace=namespace)
    with pytest.raises(IllegalMessage, match="DEFAULT_PRODUCER"):
        await producer.start()
    consumer = SimpleConsumer("127.0.0.1:9876", "DEFAULT_CONSUMER", namespace=namespace)
    with pytest.raises(IllegalMessage, match="DEFAULT_CONSUMER"):
        await consumer.start()


# -- outgoing messages ----------------------------------------------------------------------------------------------


async def test_the_topic_that_new_ones_are_made_of() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, create_topic_key="templates", default_topic_queue_nums=9) as producer:
        await producer.send(MESSAGE)
    async with producer_over(broker) as producer:
        await producer.send(MESSAGE)
    assert [(sent.header.default_topic, sent.header.default_topic_queue_nums) for sent in broker.sent] == [
        ("templates", 9),
        ("TBW102", 4),
    ]


async def test_a_retry_topics_numbers_go_into_the_header() -> None:
    broker = ProducerBroker()
    retry = Message("%RETRY%g", b"x", properties={"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "own": "v"})
    async with producer_over(broker, topics=("%RETRY%g",)) as producer:
        await producer.send(retry)
    header = broker.sent[0].header
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 16)
    assert broker.sent[0].properties.keys() == {"own", "UNIQ_KEY"}


async def test_delays() -> None:
    broker = ProducerBroker()
    broker.more = {"recallHandle": "handle"}
    async with producer_over(broker) as producer:
        assert (await producer.send(Message("topic", b"x", delay=5))).recall_handle == "handle"
        await producer.send(Message("topic", b"x", deliver_at=1_700_000_000_000))
        await producer.send(Message("topic", b"x", delay_level=3))
    delays = [{k: v for k, v in sent.properties.items() if k != "UNIQ_KEY"} for sent in broker.sent]
    assert delays == [{"TIMER_DELAY_MS": "5000"}, {"TIMER_DELIVER_MS": "1700000000000"}, {"DELAY": "3"}]


async def test_priority() -> None:
    broker = ProducerBroker()
    async with producer_over(broker) as producer:
        for priority in (0, 3):
            await producer.send(Message("topic", b"x", priority=priority))
        with pytest.raises(IllegalMessage, match="in no batch"):
            await producer.send_batch([Message("topic", b"x", priority=1), Message("topic", b"y")])
    assert [sent.properties["_SYS_MSG_PRIORITY_"] for sent in broker.sent] == ["0", "3"]


@pytest.mark.parametrize("priority", [-1, 1 << 31, True, "1"])
def test_impossible_priorities(priority: Any) -> None:
    with pytest.raises(IllegalMessage, match="priority="):
        Message("topic", b"x", priority=priority)


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("7", 7),
        ("+7", 7),
        ("2147483647", (1 << 31) - 1),
        ("2147483648", None),
        ("-1", None),
        ("+-5", None),
        ("", None),
        ("high", None),
    ],
)
def test_the_priority_of_a_message(text: str, priority: int | None) -> None:
    assert Message("topic", b"x", properties={"_SYS_MSG_PRIORITY_": text}).priority == priority


async def test_an_unreadable_recall_handle_is_an_error() -> None:
    async with producer_over(ProducerBroker()) as producer:
        with pytest.raises(IllegalMessage, match="handle"):
            await producer.recall("topic", "no handle")


# -- automatic batches ----------------------------------------------------------------------------------------------


async def test_messages_sent_at_a_time_go_together() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, topics=("topic", "other"), linger=30, batch_size=1000) as producer:
        sends = [producer.send(Message(topic, b"%d" % n)) for n in range(60) for topic in ("topic", "other")]
        results = asyncio.gather(*sends)
        await until(lambda: sum(len(sent.bodies) for sent in broker.sent) >= 90)
        delayed = await producer.send(Message("topic", b"delayed", delay_level=1))
        await producer.close()
        assert len({result.msg_id for result in await results} | {delayed.msg_id}) == 121
        assert len({result.offset_msg_id for result in await results}) > 50
    batches = [sent for sent in broker.sent if sent.code == RequestCode.SEND_BATCH_MESSAGE]
    for topic in ("topic", "other"):
        mine = [sent for sent in batches if sent.header.topic == topic]
        assert [body for sent in mine for body in sent.bodies] == [b"%d" % n for n in range(60)]
        assert all(len(sent.body) <= 1000 for sent in mine)
    assert [sent.body for sent in broker.sent if sent.code == RequestCode.SEND_MESSAGE_V2] == [b"delayed"]


async def test_a_batch_of_one_is_no_batch() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, linger=0.001) as producer:
        future = await producer.enqueue(MESSAGE)
        assert (await future).msg_id == broker.sent[0].properties["UNIQ_KEY"]
    assert broker.sent[0].code == RequestCode.SEND_MESSAGE_V2


async def test_a_failed_batch_fails_every_message() -> None:
    bad = ProducerBroker("bad", ResponseCode.MESSAGE_ILLEGAL)
    async with producer_over(bad, linger=0.005) as producer:
        errors = await asyncio.gather(*(producer.send(MESSAGE) for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in errors] == [BrokerError] * 5
    assert len(bad.sent) == 1


async def test_an_illegal_message_fails_alone() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, linger=0.005) as producer:
        good, bad = await asyncio.gather(
            producer.send(MESSAGE), producer.send(Message("topic", b"")), return_exceptions=True
        )
        with pytest.raises(IllegalMessage, match="delayed"):
            await producer.enqueue(Message("topic", b"x", delay_level=1))
    assert not isinstance(good, BaseException)
    assert isinstance(bad, IllegalMessage)


async def test_enqueue_needs_linger_ms_and_an_open_producer() -> None:
    producer = Producer("127.0.0.1:1", "producers")
    with pytest.raises(ClientClosed):
        await producer.enqueue(MESSAGE)
    async with producer:
        with pytest.raises(ClientError, match="linger"):
            await producer.enqueue(MESSAGE)


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("topic", "text"), "of type str"),  # type: ignore[arg-type]
        (Message(None, b"x"), "no topic"),  # type: ignore[arg-type]
        (Message("topic", b"x", properties={"a": "b\x01c"}), "separates"),
        (Message("topic", b"x", properties={"a\x01": "b"}), "separate"),
        (Message("%RETRY%g", b"x", properties={"RECONSUME_TIME": "many"}), "a number is wanted"),
        (Message("a/b", b"x"), "illegal characters"),
    ],
)
async def test_bad_messages_are_named(message: Message, reason: str) -> None:
    async with producer_over(ProducerBroker()) as producer:
        with pytest.raises(IllegalMessage, match=reason):
            await producer.send(message)


async def test_a_message_fits_its_queue() -> None:
    async with producer_over(ProducerBroker()) as producer:
        with pytest.raises(IllegalMessage, match="can't go to a queue of other"):
            await producer.send(MESSAGE, queue=MessageQueue("other", "broker", 0))
