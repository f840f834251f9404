"""Responses of consumers to an operator's requests, which the broker forwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from inbox import Inbox, queues_of, send_all
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.offset import ConsumerStatusBody
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import GetConsumerStatusRequestHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue


@pytest.fixture
async def admin(name_server: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_server) as admin:
        yield admin


async def only_client(admin: AdminClient, group: str) -> str:
    (connection,) = (await admin.consumer_connection(group)).connection_set
    return connection.client_id


async def test_running_info(name_server: str, producer: Producer, admin: AdminClient, topic: str, unique: str) -> None:
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, orderly=True, start_from="earliest", concurrency=7)
    consumer.subscribe(topic, tags="*")
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"x"] * 10)
        await until(lambda: len(inbox.messages) == 10)
        info = await admin.consumer_running_info(unique, await only_client(admin, unique))
    assert {subscription.topic for subscription in info.subscription_set} == {topic, f"%RETRY%{unique}"}
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    rows = {queue.queue_id: row for queue, row in info.mq_table.items() if queue.topic == topic}
    assert sum(row.commit_offset for row in rows.values()) == 10
    assert all(row.locked and row.last_lock_timestamp and row.last_pull_timestamp for row in rows.values())
    status = info.status_table[topic]
    assert status.consume_ok_tps == 1.0
    assert status.pull_tps == 1.0
    assert status.consume_failed_msgs == 0
    assert info.jstack is None


@pytest.mark.parametrize("in_threads", [False, True])
async def test_where_handlers_are(
    name_server: str, producer: Producer, admin: AdminClient, topic: str, unique: str, in_threads: bool
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def stand_in_a_thread(message: MessageExt) -> None:
        began.set()
        go_on.wait(30)

    async def stand_in_a_task(message: MessageExt) -> None:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    consumer = PushConsumer(name_server, unique, stand_in_a_thread if in_threads else stand_in_a_task)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"x"])
        await until(began.is_set)
        client_id = await only_client(admin, unique)
        info = await admin.consumer_running_info(unique, client_id, jstack=True)
        go_on.set()
    assert info.jstack is not None
    assert ("stand_in_a_thread" if in_threads else "stand_in_a_task") in info.jstack
    assert sum(row.cached_msg_count for row in info.mq_table.values()) == 1


async def test_reset_offsets_are_obeyed(
    name_server: str, producer: Producer, admin: AdminClient, topic: str, unique: str
) -> None:
    await send_all(producer, topic, [b"%d" % n for n in range(8)])
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) == 8)
        await admin.reset_offset(unique, topic, 0)
        await until(lambda: len(inbox.messages) == 16)
        await send_all(producer, topic, [b"new"])
        await until(lambda: len(inbox.messages) == 17)
    assert inbox.bodies == sorted([b"%d" % n for n in range(8)] * 2 + [b"new"])
    async with LitePullConsumer(name_server, unique) as reader:
        offsets = [await reader.committed(queue) or 0 for queue in await reader.queues(topic)]
        assert sum(offsets) == 9


async def test_status(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await send_all(producer, topic, [b"x"] * 8)
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) == 8)
        header = GetConsumerStatusRequestHeader(topic=topic, group=unique, client_addr="")
        request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        address = producer.client.routes.master_address("broker-a")
        assert address is not None
        answer = await producer.client.remoting.call(address, request, 5000)
        (table,) = ConsumerStatusBody.decode(answer.body).consumer_table.values()
    assert set(table) == {MessageQueue(topic, "broker-a", n) for n in range(4)}
    assert sum(table.values()) == 8


@pytest.mark.parametrize("in_threads", [False, True])
async def test_a_message_consumed_on_demand(
    name_server: str, producer: Producer, admin: AdminClient, topic: str, unique: str, in_threads: bool
) -> None:
    bodies: list[tuple[str, bytes]] = []

    def handle(message: MessageExt) -> None:
        bodies.append((message.topic, message.body))
        if message.body == b"bad":
            raise ValueError("not this one")

    async def handle_in_task(message: MessageExt) -> None:
        handle(message)

    ids = [await send(producer, topic, body) for body in (b"good", b"bad")]
    sent = [await admin.message_by_offset_id(offset_msg_id, topic) for offset_msg_id in ids]
    consumer = PushConsumer(name_server, unique, handle if in_threads else handle_in_task)
    await producer.send(Message(f"{unique}_2", b"x"))
    # Direct consumption does not need a subscription of the topic.
    consumer.subscribe(f"{unique}_2", tags="nothing")
    async with consumer:
        await until(lambda: queues_of(consumer, f"{unique}_2"))
        client_id = await only_client(admin, unique)
        results = [await admin.consume_directly(unique, client_id, message) for message in sent]
    assert bodies == [(topic, b"good"), (topic, b"bad")]
    assert [result.consume_result for result in results] == ["CR_SUCCESS", "CR_THROW_EXCEPTION"]
    assert results[1].remark == "ValueError: not this one"


async def send(producer: Producer, topic: str, body: bytes) -> str:
    return (await producer.send(Message(topic, body))).offset_msg_id


async def test_who_has_no_handler_says_so(
    name_server: str, producer: Producer, admin: AdminClient, topic: str, unique: str
) -> None:
    message = await admin.message_by_offset_id(await send(producer, topic, b"x"), topic)
    consumer = LitePullConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(consumer.assignment) == 4)
        client_id = await only_client(admin, unique)
        with pytest.raises(BrokerError, match="no handler"):
            await admin.consume_directly(unique, client_id, message)
        info = await admin.consumer_running_info(unique, client_id)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert len(info.mq_table) == 4
