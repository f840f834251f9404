"""Requests that are much more expensive than their size: none delays the broker's responses to others."""

from __future__ import annotations

import asyncio

import pytest
from hostile_support import Peer, Target, UnderAttack, flood, frame, pull_header, send_header
from wait_until import until

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.headers.pop import NotificationRequestHeader, PopMessageRequestHeader
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.system.clock import now_ms


def pop_header(topic: str, *, poll_time: int = 0, **changed: str) -> Header:
    return PopMessageRequestHeader(
        consumer_group="attackers",
        topic=topic,
        queue_id=0,
        max_msg_nums=1,
        invisible_time=1000,
        poll_time=poll_time,
        init_mode=0,
        **changed,
    )


async def test_nothing_at_all(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        assert (await (await broker.peer()).send("orders", b"x")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("properties_length", "body_length"),
    [(1_150_000, 40_000), (2_300_000, 1_000_000)],
)
async def test_properties_of_a_batch(under_attack: UnderAttack, properties_length: int, body_length: int) -> None:
    """The properties apply to each message of the batch: 40 KB of body have 1,800 messages."""
    message = encode_batch([(0, b"", b"")])
    async with under_attack() as broker:
        peer = await broker.peer()
        header = send_header("orders", b"p\x01" + b"x" * properties_length, batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, message * (body_length // len(message)))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("properties_length", [0, 20])
async def test_a_batch_of_as_many_messages_as_fit(under_attack: UnderAttack, properties_length: int) -> None:
    """A batch of 4 MB has 182,361 messages."""
    message = encode_batch([(0, b"", b"k\x01" + b"v" * (properties_length - 2) if properties_length else b"")])
    async with under_attack() as broker:
        peer = await broker.peer()
        body = message * (4 * 1024 * 1024 // len(message))
        answers = [
            await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), body) for _ in "ab"
        ]
        # The broker stores or rejects the whole batch.
        assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL}


async def test_a_heartbeat_with_thousands_of_new_groups(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        body = heartbeat("attacker@1", [f"group-{i}" for i in range(4000)])
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def test_a_heartbeat_with_thousands_of_subscriptions(under_attack: UnderAttack) -> None:
    subscriptions = [SubscriptionData(f"topic-{i}", "a || b", ["a", "b"], [97, 98]) for i in range(20_000)]
    data = HeartbeatData("attacker@1", consumer_data_set=[ConsumerData("readers", subscription_data_set=subscriptions)])
    async with under_attack() as broker:
        peer = await broker.peer()
        for _ in range(3):
            assert (await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))).code == ResponseCode.SUCCESS


async def test_a_filter_that_takes_long_and_finds_nothing(under_attack: UnderAttack) -> None:
    expression = " OR ".join(["a = 1 AND b = 2"] * 790)
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send_many("orders", 3000, {"a": "1", "b": "3"})
        answer = await peer.ask(
            RequestCode.PULL_MESSAGE, pull_header("orders", expression_type="SQL92", subscription=expression)
        )
        assert answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)


#: Expressions that a parser must not take long for, and names that are expensive to hash.
_EXPRESSIONS = [
    "(" * 50_000 + "a" + ")" * 50_000,
    "NOT " * 50_000 + "a",
    " ".join(["a = 1"] * 100_000),
    "-" * 100_000 + "1",
    "a IN (" + "'x'," * 500_000 + "'y')",
    "a = '" + "''" * 1_000_000,
    "a = '" + "''" * 1_000_000 + "'",
    "a" * 3_000_000,
    "||" * 1_000_000,
    "a||" * 1_000_000,
]


async def test_expressions_that_are_hard_to_parse(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x", {"a": "1"})
        for expression in _EXPRESSIONS:
            for kind in ("SQL92", "TAG"):
                header = pull_header("orders", expression_type=kind, subscription=expression)
                for _ in range(3):
                    assert (await peer.ask(RequestCode.PULL_MESSAGE, header)).code != ResponseCode.SUCCESS


async def test_a_heartbeat_with_hundreds_of_expressions(under_attack: UnderAttack) -> None:
    expression = " OR ".join(["a = 1 AND b = 2"] * 500)
    consumers = [
        ConsumerData(
            f"group-{i}", subscription_data_set=[SubscriptionData("orders", expression, expression_type="SQL92")]
        )
        for i in range(300)
    ]
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x", {"a": "1"})
        body = encode_json(HeartbeatData("attacker@1", consumer_data_set=consumers))
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        # The groups change their expressions one after the other.
        for data in consumers[:100]:
            data.subscription_data_set[0].sub_string += " OR a = 3"
            data.subscription_data_set[0].sub_version += 1
        body = encode_json(HeartbeatData("attacker@1", consumer_data_set=consumers))
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def test_a_key_that_every_message_has(under_attack: UnderAttack) -> None:
    """The index has the newest message first: a query for the time of the first message iterates over all of them."""
    async with under_attack() as broker:
        peer = await broker.peer()
        begin = now_ms()
        await fill(peer, "orders", 200_000, b"KEYS\x01k")
        last = decode_offset_message_id((await peer.send("orders", b"x", {"KEYS": "k"})).ext_fields["msgId"])[1]

        async def ask(end: int) -> RemotingCommand:
            header = QueryMessageRequestHeader(
                topic="orders", key="k", max_num=64, begin_timestamp=begin - 1, end_timestamp=end
            )
            return await peer.ask(RequestCode.QUERY_MESSAGE, header)

        async def is_indexed() -> bool:
            return int((await ask(now_ms())).ext_fields.get("indexLastUpdatePhyoffset", 0)) >= last

        await until(is_indexed)
        for _ in range(20):
            assert (await ask(begin)).code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


async def test_popped_and_never_acknowledged(under_attack: UnderAttack) -> None:
    """Each message is popped by its own request, and all are redelivered at the same time."""
    count = 20_000
    async with under_attack(properties={"popCkStayBufferTime": "0"}) as broker:
        peer = await broker.peer()
        await fill(peer, "orders", count)
        popped = 0
        while popped < count:
            answers = await asyncio.gather(
                *(peer.ask(RequestCode.POP_MESSAGE, pop_header("orders")) for _ in range(100))
            )
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
            popped += len(answers)

        async def are_back() -> bool:
            answer = await peer.ask(
                RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic="%RETRY%attackers_orders", queue_id=0)
            )
            return answer.ext_fields.get("offset") == str(count)

        await until(are_back, 60)


async def test_thousands_of_connections_that_end_at_once(under_attack: UnderAttack) -> None:
    """2,000 connections, the largest number on small machines, beside 20 clients of 400 groups."""
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        clients = [await broker.peer() for _ in range(20)]
        for number, client in enumerate(clients):
            groups = [f"group-{i % 400}" for i in range(20 * number, 20 * number + 400)]
            await client.ask(RequestCode.HEART_BEAT, body=heartbeat(f"attacker@{number}", groups))
        sockets = [broker.socket() for _ in range(2000)]
        for one in sockets:
            one.sendall(frame(RequestCode.GET_BROKER_CONFIG))
            assert one.recv(4)
        before = broker.descriptors()
        for one in sockets:
            one.close()
        await until(lambda: broker.descriptors() < before - 1900)


async def test_a_thousand_members_of_one_group_that_leave_at_once(under_attack: UnderAttack) -> None:
    """The broker notifies each member of each change."""
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        sockets = []
        for number in range(1000):
            sockets.append(broker.socket())
            sockets[-1].sendall(frame(RequestCode.HEART_BEAT, body=heartbeat(f"attacker@{number}", ["group"])))
        for one in sockets:
            assert one.recv(4)
        before = broker.descriptors()
        for one in sockets:
            one.close()
        await until(lambda: broker.descriptors() < before - 900)


#: Requests that wait for a message.
_WAITING = [
    pytest.param(RequestCode.PULL_MESSAGE, pull_header("orders", 1, suspend_ms=60_000), id="pulls"),
    pytest.param(RequestCode.POP_MESSAGE, pop_header("orders", poll_time=60_000), id="pops"),
    pytest.param(
        RequestCode.NOTIFICATION,
        NotificationRequestHeader(consumer_group="attackers", topic="orders", queue_id=0, poll_time=60_000),
        id="notifications",
    ),
]


@pytest.mark.parametrize(("code", "header"), _WAITING)
async def test_a_hundred_thousand_waiting_requests(
    under_attack: UnderAttack, code: RequestCode, header: Header
) -> None:
    """The requests are notified, then their client disconnects. Another client disconnects while its requests wait."""
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        await peer.ask(RequestCode.POP_MESSAGE, pop_header("orders"))
        with broker.socket() as attacker:
            await flood(attacker, frame(code, header) * 100_000)
            assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        with broker.socket() as attacker:
            await flood(attacker, frame(code, header) * 100_000)
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("connections", "requests", "flush"),
    [
        (1, 50_000, "ASYNC_FLUSH"),
        (50, 1_000, "ASYNC_FLUSH"),
        (50, 1_000, "SYNC_FLUSH"),
    ],
)
async def test_a_flood_of_cheap_requests(
    under_attack: UnderAttack, connections: int, requests: int, flush: str
) -> None:
    """Sends requests like a fast producer."""
    request = frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")
    async with under_attack(properties={"flushDiskType": flush}, inevitable=[ResponseCode.SYSTEM_BUSY]) as broker:
        await (await broker.peer()).send("orders", b"x")
        await asyncio.gather(*(in_a_hurry(broker, request, requests) for _ in range(connections)))


async def in_a_hurry(broker: Target, request: bytes, count: int) -> None:
    """Sends `count` requests as fast as the broker accepts them, and reads the responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rsplit(":", 1)[1]))
    writer.write(request * count)
    frames = FrameReader()
    while count:
        count -= sum(1 for _ in frames.feed(await reader.read(1 << 20)))
    writer.close()


def heartbeat(client_id: str, groups: list[str]) -> bytes:
    consumers = [ConsumerData(group, subscription_data_set=[SubscriptionData("orders")]) for group in groups]
    return encode_json(HeartbeatData(client_id, consumer_data_set=consumers))


async def fill(peer: Peer, topic: str, count: int, properties: bytes = b"") -> None:
    """Sends many small messages in batches of up to 5,000."""
    size = min(count, 5000)
    body = encode_batch([(0, b"x", properties)] * size)
    for _ in range(count // size):
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(topic, batch=True), body)
        assert answer.code == ResponseCode.SUCCESS
