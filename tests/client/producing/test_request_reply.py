"""Requests and replies between clients."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from internals import has_pending_requests
from scripted_producer import ProducerBroker, producer_over
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.errors import BrokerError, IllegalMessage, RequestTimeout
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import CompressionType, compress, compression_flag
from gantrymq.protocol.headers.send import ReplyMessageRequestHeader
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import encode_properties

MESSAGE = Message("topic", b"question", tags="tag")


def pushed(properties: dict[str, str], body: bytes = b"answer", *, sys_flag: int = 0, host: str) -> RemotingCommand:
    """Returns a reply as a broker pushes it."""
    header = ReplyMessageRequestHeader(
        producer_group="repliers",
        topic="cluster_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=2,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=0,
        properties=encode_properties(properties).decode(),
        born_host=host,
        store_host=host,
        store_timestamp=2,
    )
    return RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body)


@pytest.mark.parametrize("host", ["127.0.0.1:5", "/127.0.0.1:5", "host-name:5", "[::1]:5", "nonsense"])
async def test_a_request_gets_its_reply(host: str) -> None:
    broker = ProducerBroker()
    async with producer_over(broker) as producer:
        request = asyncio.create_task(producer.request(MESSAGE, timeout=10))
        await until(lambda: broker.sent)
        properties = broker.sent[0].properties
        assert properties["REPLY_TO_CLIENT"] == producer.client.client_id
        assert (properties["TTL"], properties["TAGS"]) == ("10000", "tag")
        assert broker.connection
        mine = {"CORRELATION_ID": properties["CORRELATION_ID"], "own": "value"}
        other = await broker.connection.invoke(pushed({"CORRELATION_ID": "other"}, host=host))
        answer = await broker.connection.invoke(
            pushed(
                mine,
                compress(b"answer" * 100, CompressionType.ZSTD),
                sys_flag=compression_flag(CompressionType.ZSTD),
                host=host,
            )
        )
        reply = await request
    assert (other.code, answer.code) == (0, 0)
    assert (reply.body, reply.topic, reply.queue_id) == (b"answer" * 100, "cluster_REPLY_TOPIC", 2)
    assert reply.properties["own"] == "value"
    assert int(reply.properties["ARRIVE_TIME"]) > 0
    assert MESSAGE.properties == {"TAGS": "tag"}


async def test_without_a_reply_the_request_fails_in_time() -> None:
    broker = ProducerBroker()
    async with producer_over(broker) as producer:
        with pytest.raises(RequestTimeout, match="no reply"):
            await producer.request(MESSAGE, timeout=0.1)
        # The late reply has no effect.
        late = {"CORRELATION_ID": broker.sent[0].properties["CORRELATION_ID"]}
        assert broker.connection
        assert (await broker.connection.invoke(pushed(late, host="127.0.0.1:5"))).code == 0
        assert not has_pending_requests(producer)


async def test_a_request_that_is_not_stored_fails_at_once() -> None:
    broker = ProducerBroker(answer=ResponseCode.MESSAGE_ILLEGAL)
    async with producer_over(broker) as producer:
        with pytest.raises(BrokerError, match="as scripted"):
            await producer.request(MESSAGE, timeout=10)
        assert not has_pending_requests(producer)


async def test_replies_have_their_own_request_code() -> None:
    properties = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000", "TAGS": "t"}
    reply = reply_message(Message("topic", b"q", properties=properties), b"answer")
    broker = ProducerBroker()
    async with producer_over(broker, topics=("c_REPLY_TOPIC",)) as producer:
        await producer.send(reply)
    (sent,) = broker.sent
    assert sent.code == RequestCode.SEND_REPLY_MESSAGE_V2
    del sent.properties["UNIQ_KEY"]
    assert sent.properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "id",
        "REPLY_TO_CLIENT": "client",
        "TTL": "3000",
    }


def test_only_requests_can_be_replied_to() -> None:
    with pytest.raises(IllegalMessage, match="is no request"):
        reply_message(MESSAGE, b"answer")


async def test_request_and_reply_through_a_cluster(name_server: str, topic: str, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(topic)

    async def reply() -> None:
        async with consumer, Producer(name_server, "repliers") as producer:
            answered = 0
            while answered < 5:
                for message in await consumer.poll():
                    await producer.send(reply_message(message, b"re: " + message.body))
                    answered += 1

    replying = asyncio.create_task(reply())
    async with asyncio.timeout(60), Producer(name_server, "askers") as producer:
        questions = [Message(topic, b"question %d" % n) for n in range(5)]
        replies = await asyncio.gather(*(producer.request(question, timeout=30) for question in questions))
        await replying
    assert [reply.body for reply in replies] == [b"re: question %d" % n for n in range(5)]


async def test_replies_and_messages_to_retry_topics_never_go_in_a_batch() -> None:
    """A batch lacks the special fields of these messages. A reply would be stored instead of pushed."""
    broker = ProducerBroker()
    request = Message("topic", b"q", properties={"CLUSTER": "c", "CORRELATION_ID": "1", "REPLY_TO_CLIENT": "me"})
    topics = ("c_REPLY_TOPIC", "%RETRY%group")
    async with producer_over(broker, topics=topics, linger=0.001) as producer:
        again = Message("%RETRY%group", b"again", properties={"RECONSUME_TIME": "3"})
        await asyncio.gather(
            *(producer.send(reply_message(request, b"%d" % n)) for n in range(3)),
            *(producer.send(again) for _ in range(2)),
        )
        with pytest.raises(IllegalMessage):
            await producer.enqueue(reply_message(request, b"x"))
    codes = [RequestCode.SEND_REPLY_MESSAGE_V2] * 3 + [RequestCode.SEND_MESSAGE_V2] * 2
    assert [sent.code for sent in broker.sent] == codes
    assert {sent.header.reconsume_times for sent in broker.sent[3:]} == {3}


async def test_a_request_does_not_wait_for_brokers_that_are_gone() -> None:
    """One broker of the topic does not respond. It gets the client's heartbeat in the background."""
    good = ProducerBroker()
    async with producer_over(good) as producer:
        with socket.create_server(("127.0.0.1", 0)) as hole:
            await producer.queues("topic")
            producer.client.routes.all_brokers()["hole"] = {0: f"127.0.0.1:{hole.getsockname()[1]}"}
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(RequestTimeout, match="no reply"):
                    await producer.request(MESSAGE, timeout=0.2)
            assert time.monotonic() - began < 2
            assert len(good.sent) == 2
