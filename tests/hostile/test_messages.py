"""Messages with properties, topics and queues that clients must not use: none circulates in the background."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator

import pytest
from every_request import TEXTS
from hostile_support import Peer, Target, UnderAttack, frame, send_header
from wait_until import until

from gantrymq.protocol import properties as names
from gantrymq.protocol import topic_name
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.system.clock import now_ms

#: All properties with a meaning in RocketMQ.
PROPERTIES = sorted(
    value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and value.isprintable() and len(value) > 1
)
#: Topics that only the broker writes.
INTERNAL = [
    *sorted(topic_name.SEND_FORBIDDEN_TOPICS),
    topic_name.TIMER_TOPIC,
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
]
#: Bytes that an idle broker itself writes in a few seconds.
_QUIET = 300_000


def hostile_properties() -> Iterator[bytes]:
    """Yields each property with each text, and the properties that name a topic with each system topic."""
    later = f"DELAY\x011\x02TIMER_DELIVER_MS\x01{now_ms() + 1000}\x02".encode()
    for name in PROPERTIES:
        for text in TEXTS:
            if text is not None and len(text) < 30_000:
                value = text.replace("\x01", "").replace("\x02", "")
                for more in (b"", b"DELAY\x011\x02", b"TIMER_DELAY_MS\x01500\x02"):
                    yield b"%b\x01%b\x02%b" % (name.encode(), value.encode(), more)
    for topic in INTERNAL:
        for name in (b"REAL_TOPIC", b"RETRY_TOPIC"):
            for more in (b"", later, b"TIMER_DELAY_MS\x01500\x02", b"DELAY\x011\x02", b"TRAN_MSG\x01true\x02"):
                yield b"%b\x01%b\x02REAL_QID\x010\x02%b" % (name, topic.encode(), more)
    yield from (b"\x01", b"\x02", b"a", b"\x01\x02" * 5000, b"a\x01" * 5000, b"\x02\x02a\x01b", b"DELAY", b"DELAY\x01")


async def send_all(peer: Peer, topics: list[str], properties: list[bytes], **changed: object) -> set[int]:
    """Sends all messages. Returns the response codes; each message must get a response."""
    codes = set()
    for topic in topics:
        for start in range(0, len(properties), 200):
            asked = [
                peer.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, one, **changed), b"x", timeout_ms=20_000)
                for one in properties[start : start + 200]
            ]
            codes |= {answer.code for answer in await asyncio.gather(*asked)}
    return codes


async def log_end(peer: Peer) -> int:
    info = json.loads((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    return int(info["commitLogMaxOffset"])


@pytest.mark.parametrize("crc", ["false", "true"])
async def test_properties(under_attack: UnderAttack, crc: str) -> None:
    """With `crc`, a record also has a checksum as its last property."""
    async with under_attack(properties={"messageDelayLevel": "1s 2s", "enabledAppendPropCRC": crc}) as broker:
        peer = await broker.peer()
        topics = ["orders", "%RETRY%attackers", "%DLQ%attackers", "RMQ_SYS_TRACE_TOPIC", "%RETRY%" + "x" * 240]
        for topic in topics:
            await peer.send(topic, b"x")
        properties = list(hostile_properties())
        await send_all(peer, topics, properties)
        await send_all(peer, topics, properties[::20], reconsume_times=20)
        await send_all(peer, topics, properties[::20], sys_flag=TRANSACTION_PREPARED)
        await is_quiet(peer)


async def is_quiet(peer: Peer) -> None:
    """Waits until all messages are delivered and none circulates: the log hardly grows for 2 s."""
    ends: list[tuple[int, int]] = []

    async def is_still() -> bool:
        ends.append((now_ms(), await log_end(peer)))
        old = [end for at, end in ends if at < ends[-1][0] - 2000]
        return bool(old) and ends[-1][1] - old[-1] < _QUIET

    await until(is_still)


async def test_topics_that_the_broker_alone_writes(under_attack: UnderAttack) -> None:
    """Clients cannot write to them: not directly, by a transaction, a batch or a reply, or by a real-topic property."""
    async with under_attack(properties={"messageDelayLevel": "1s 2s"}) as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        before = [await end_of(peer, topic) for topic in INTERNAL]
        for topic in INTERNAL:
            await send_to(peer, topic)
        await is_quiet(peer)
        # The broker itself writes delayed, half and timed messages to these topics.
        at_home = (topic_name.SCHEDULE_TOPIC, topic_name.TRANSACTION_HALF_TOPIC, topic_name.TIMER_TOPIC)
        for topic, end in zip(INTERNAL, before, strict=True):
            assert topic in at_home or await end_of(peer, topic) == end


async def send_to(peer: Peer, topic: str) -> None:
    """Sends to the topic in all possible ways."""
    name = topic.encode()
    for target in (topic, "orders"):
        for properties in (
            b"",
            b"REAL_TOPIC\x01%b\x02REAL_QID\x010\x02TIMER_OUT_MS\x011\x02" % name,
            b"REAL_TOPIC\x01%b\x02REAL_QID\x010\x02TIMER_DELAY_MS\x0110\x02" % name,
            b"RETRY_TOPIC\x01%b\x02DELAY\x011\x02" % name,
            b"REAL_TOPIC\x01%b\x02REAL_QID\x010\x02DELAY\x011\x02" % name,
            b"REAL_TOPIC\x01%b\x02REAL_QID\x010\x02TRAN_MSG\x01true\x02PGROUP\x01a\x02" % name,
        ):
            batch = encode_batch([(0, b"x", properties)])
            await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header(target, properties), b"x")
            await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(target, batch=True), batch)
            await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_header(target, properties), b"x")


async def end_of(peer: Peer, topic: str) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=topic, queue_id=0))
    return int(answer.ext_fields.get("offset", 0))


async def test_a_timer_message_for_the_timer_itself(under_attack: UnderAttack) -> None:
    """Without this check, the timer would deliver the message to itself repeatedly."""
    properties = b"REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010\x02TIMER_OUT_MS\x01%d\x02" % (now_ms() + 500)
    async with under_attack() as broker:
        peer = await broker.peer()
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic_name.TIMER_TOPIC, properties), b"x")
        assert answer.code == ResponseCode.NO_PERMISSION
        await is_quiet(peer)


async def test_half_messages_of_the_future(under_attack: UnderAttack) -> None:
    """Their check is not due before a time that never comes."""
    properties = {"TRAN_MSG": "true", "PGROUP": "attackers", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1000000000"}
    header = send_header("orders", properties, born_timestamp=1 << 62)
    async with under_attack(properties={"transactionCheckInterval": "500"}) as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        for _ in range(1000):
            await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"x" * 500)
        await is_quiet(peer)


async def test_an_accepted_timer_message_comes(under_attack: UnderAttack) -> None:
    """The broker and the delivery add properties, even if the message's properties have the largest size."""
    delay = b"TIMER_DELAY_MS\x01500\x02UNIQ_KEY\x010123456789\x02a\x01"
    async with under_attack() as broker:
        peer = await broker.peer()
        accepted = 0
        for length in range(MAX_PROPERTIES_LENGTH - 800, MAX_PROPERTIES_LENGTH + 1, 10):
            properties = delay + b"x" * (length - len(delay) - 1) + b"\x02"
            answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders", properties), b"x")
            accepted += answer.code == ResponseCode.SUCCESS
        assert accepted

        async def have_come() -> bool:
            return await end_of(peer, "orders") == accepted

        await until(have_come)


async def test_topics_with_a_strange_number_of_queues(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        for queue_nums in (0, -1, -(1 << 31), (1 << 31) - 1):
            topic = f"strange-{queue_nums}"
            for queue_id in (0, -1, 1, (1 << 31) - 1, -(1 << 31)):
                header = send_header(topic, default_topic_queue_nums=queue_nums, queue_id=queue_id)
                await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"x")
            assert (await peer.send(topic, b"x")).code == ResponseCode.SUCCESS


async def test_a_random_queue_is_one_that_is_written(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        header = CreateTopicRequestHeader(
            topic="drained", default_topic="TBW102", read_queue_nums=16, write_queue_nums=1, perm=6
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
        for _ in range(50):
            answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("drained", queue_id=-1), b"x")
            assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")


async def test_a_user_s_property_is_not_taken_for_the_broker_s(under_attack: UnderAttack) -> None:
    """A send without WAIT gets its response at once, even before an earlier send that waits for the disk."""
    async with under_attack(properties={"flushDiskType": "SYNC_FLUSH"}) as broker:
        await (await broker.peer()).send("orders", b"x")
        requests = [b"AWAIT\x01false\x02", b"a\x01WAIT\x02", b"WAIT\x01false\x02"]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rsplit(":", 1)[1]))
        writer.write(
            b"".join(
                frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", properties), b"x", opaque=number)
                for number, properties in enumerate(requests)
            )
        )
        answers: list[int] = []
        frames = FrameReader()
        while len(answers) < len(requests):
            answers += [answer.opaque for answer in frames.feed(await reader.read(1 << 16))]
        assert answers[0] == 2
        writer.close()


# Creates the files of 2,000 topics. With other tests on the same disk, a send would exceed the producers' timeout.
@pytest.mark.alone
async def test_thousands_of_new_topics(under_attack: UnderAttack) -> None:
    """The broker stores each new topic in its table and registers it with the NameServer."""
    async with under_attack() as broker:
        peer = await broker.peer()
        asked = [peer.send(f"topic-{number}", b"x") for number in range(2000)]
        assert {answer.code for answer in await asyncio.gather(*asked)} == {ResponseCode.SUCCESS}


async def test_messages_of_thousands_of_keys(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        for number in range(200):
            keys = " ".join(f"{number:x}{i:x}" for i in range(5000))
            assert (await peer.send("orders", b"x", {"KEYS": keys})).code == ResponseCode.SUCCESS
        header = QueryMessageRequestHeader(
            topic="orders", key="00", max_num=32, begin_timestamp=0, end_timestamp=1 << 62
        )
        await peer.ask(RequestCode.QUERY_MESSAGE, header)


async def test_mutated_frames(under_attack: UnderAttack) -> None:
    """Sends and pulls with some changed bytes, on new connections where necessary."""
    chance = random.Random(7)
    valid = [
        frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", {"a": "b", "TAGS": "x"}), b"body" * 20),
        frame(RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), encode_batch([(0, b"x", b"")] * 5)),
    ]
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        await asyncio.gather(*(mutants(broker, chance.choice(valid), chance.random()) for _ in range(500)))


async def mutants(broker: Target, request: bytes, seed: float) -> None:
    chance = random.Random(seed)
    _, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rsplit(":", 1)[1]))
    try:
        for _ in range(20):
            mutant = bytearray(request)
            for _ in range(chance.randrange(1, 4)):
                # The length stays valid; otherwise the broker would wait for more bytes.
                mutant[chance.randrange(4, len(mutant))] = chance.randrange(256)
            writer.write(mutant)
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
