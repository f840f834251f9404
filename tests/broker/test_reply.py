"""Request-reply between clients, over sockets."""

from __future__ import annotations

import asyncio

import pytest
from broker_support import Peer
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.send import replies as reply_module
from gantrymq.errors import RefusalReason
from gantrymq.limits import Limit
from gantrymq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.send import ReplyMessageRequestHeader, SendMessageResponseHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.protocol.properties import MESSAGE_REPLY_TO_CLIENT, PUSH_REPLY_TIME, decode_properties
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.quota import Quota

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
CODES = pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])


class Asker:
    """A producer that waits for replies."""

    def __init__(self, answer: int) -> None:
        self.pushed: list[RemotingCommand] = []
        self._answer = answer
        self.remoting = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take})

    def _take(self, connection: Connection, request: RemotingCommand) -> Reply:
        self.pushed.append(request)
        return RemotingCommand.response(self._answer, "so it is")

    async def join(self, broker: Broker) -> None:
        data = HeartbeatData(client_id="asker", producer_data_set=[ProducerData("askers")])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
        await self.remoting.call(broker.address, request, 5000)


async def reply(peer: Peer, code: int, properties: dict[str, str], **changed: object) -> RemotingCommand:
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        return await peer.send(REPLY_TOPIC, b"answer", code=code, properties=properties, **changed)
    fields = {
        "producerGroup": "repliers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
    }
    return await peer.ask(code, body=b"answer", fields=fields)


@CODES
async def test_a_reply_is_pushed_to_who_asked_and_stored(broker: Broker, peer: Peer, code: int) -> None:
    asker = Asker(ResponseCode.SUCCESS)
    await asker.join(broker)
    answer = await reply(peer, code, {MESSAGE_REPLY_TO_CLIENT: "asker", "CORRELATION_ID": "c1"})
    assert answer.code == ResponseCode.SUCCESS
    header = answer.read_header(SendMessageResponseHeader)
    (pushed,) = asker.pushed
    assert pushed.body == b"answer"
    push = pushed.read_header(ReplyMessageRequestHeader)
    assert push.topic == REPLY_TOPIC
    assert push.store_host == broker.address
    assert (header.msg_region, header.trace_on) == ("DefaultRegion", "true")
    properties = decode_properties((push.properties or "").encode())
    assert properties["CORRELATION_ID"] == "c1"
    assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("DefaultRegion", "true")
    assert int(properties[PUSH_REPLY_TIME]) == push.store_timestamp
    pulled = await peer.pull(REPLY_TOPIC, header.queue_offset)
    (stored,) = decode_messages(pulled.body)
    assert (stored.body, stored.offset_msg_id) == (b"answer", header.msg_id)
    await asker.remoting.close()


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ({}, "reply message properties[REPLY_TO_CLIENT] is null"),
        ({MESSAGE_REPLY_TO_CLIENT: "nobody"}, "push reply message fail, channel of <nobody> not found."),
    ],
)
async def test_a_reply_to_nobody_is_refused_but_stored(peer: Peer, properties: dict[str, str], remark: str) -> None:
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, properties)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    offset = answer.read_header(SendMessageResponseHeader).queue_offset
    assert (await peer.pull(REPLY_TOPIC, offset)).code == ResponseCode.SUCCESS


async def test_what_the_asker_refuses_the_replier_learns(broker: Broker, peer: Peer) -> None:
    asker = Asker(ResponseCode.SYSTEM_ERROR)
    await asker.join(broker)
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, {MESSAGE_REPLY_TO_CLIENT: "asker"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "so it is" in (answer.remark or "")
    await asker.remoting.close()


async def test_an_asker_who_left_is_not_found(broker: Broker, peer: Peer) -> None:
    asker = Asker(ResponseCode.SUCCESS)
    await asker.join(broker)
    await asker.remoting.close()
    await until(lambda: not broker.members.producers)
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, {MESSAGE_REPLY_TO_CLIENT: "asker"})
    assert answer.remark == "push reply message fail, channel of <asker> not found."
    assert answer.ext_fields[REASON_FIELD] == RefusalReason.REQUESTER_GONE


async def test_without_storing_nothing_is_stored(broker: Broker, peer: Peer) -> None:
    broker.config.store_reply_message_enable = False
    asker = Asker(ResponseCode.SUCCESS)
    await asker.join(broker)
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, {MESSAGE_REPLY_TO_CLIENT: "asker"})
    assert answer.code == ResponseCode.SUCCESS
    assert answer.read_header(SendMessageResponseHeader).msg_id == "0"
    assert broker.store.queue(REPLY_TOPIC, 0).max_offset == 0
    await asker.remoting.close()


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [
        ("Unknown", 0, ResponseCode.TOPIC_NOT_EXIST),
        (REPLY_TOPIC, 7, ResponseCode.INVALID_PARAMETER),
        ("no/name", 0, ResponseCode.INVALID_PARAMETER),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0, ResponseCode.NO_PERMISSION),
        ("SCHEDULE_TOPIC_XXXX", 0, ResponseCode.NO_PERMISSION),
    ],
)
async def test_a_reply_to_no_queue_is_refused(peer: Peer, topic: str, queue_id: int, code: int) -> None:
    answer = await peer.send(
        topic, b"answer", code=RequestCode.SEND_REPLY_MESSAGE_V2, queue_id=queue_id, properties={"a": "b"}
    )
    assert answer.code == code


async def test_a_topic_deleted_during_the_push_gets_no_message(broker: Broker, peer: Peer) -> None:
    broker.topics.create_if_absent("answers", 1)
    asker = Asker(ResponseCode.SUCCESS)

    def take(connection: Connection, request: RemotingCommand) -> Reply:
        broker.topics.remove("answers")
        broker.store.delete_topic("answers")
        return RemotingCommand.response()

    asker.remoting = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take})
    await asker.join(broker)
    answer = await peer.send(
        "answers", b"x", code=RequestCode.SEND_REPLY_MESSAGE_V2, properties={MESSAGE_REPLY_TO_CLIENT: "asker"}
    )
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "answers" not in broker.store.topics()
    await asker.remoting.close()


class SleepingAsker(Asker):
    """A producer that receives replies but does not respond to the broker."""

    def _take(self, connection: Connection, request: RemotingCommand) -> Reply:
        self.pushed.append(request)
        return None


async def test_replies_that_wait_are_bounded(broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    [replies] = [part for part in broker.features.all if isinstance(part, reply_module.Replies)]
    limit = Limit("replies", ("broker",), items=8, size=1000, items_of_one=2, size_of_one=250, reason="a test")
    monkeypatch.setattr(replies, "_quota", Quota(limit))
    asker = SleepingAsker(ResponseCode.SUCCESS)
    await asker.join(broker)
    to_asker = {MESSAGE_REPLY_TO_CLIENT: "asker"}
    waiting = [asyncio.create_task(reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, to_asker)) for _ in range(2)]
    await until(lambda: len(asker.pushed) == 2)
    # One connection gets a quarter of the limit.
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, to_asker)
    assert (answer.code, "2 replies" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    # When a connection closes, its part of the limit is free again.
    await asker.remoting.close()
    await asyncio.gather(*waiting)
    answer = await reply(peer, RequestCode.SEND_REPLY_MESSAGE_V2, to_asker)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_reply_that_can_not_be_stored_is_not_pushed(broker: Broker, peer: Peer) -> None:
    asker = Asker(ResponseCode.SUCCESS)
    await asker.join(broker)
    for properties, body in [({"p": "x" * 40_000}, b"x"), ({}, bytes(5 << 20))]:
        answer = await peer.send(
            REPLY_TOPIC,
            body,
            code=RequestCode.SEND_REPLY_MESSAGE_V2,
            properties={MESSAGE_REPLY_TO_CLIENT: "asker"} | properties,
        )
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not asker.pushed
    await asker.remoting.close()
