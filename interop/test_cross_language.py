"""Each kind of message from Apache's producer to this project's consumers and back, with either broker.

Plain messages, batches and compression by this project are in `test_python_clients.py`. Requests with replies, and
transactions of this project's producer, are in `test_python_producer.py`.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import pytest
from conftest import Cluster
from programs import PROGRAM_TIMEOUT_S, Sent, _lines, _run, command_line, consume, produce, sample
from servers import gantry_broker, gantry_namesrv, java_broker

from gantrymq.client.consuming.consumer_base import MessageFilter
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.protocol.compression import CompressionType, compression_flag
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.sys_flag import COMPRESSION_MASK

pytestmark = pytest.mark.interop(feature="send and receive", clients="java gantry", servers="{cluster}")

BROKERS = {"java": java_broker, "gantry": gantry_broker}
#: Brokers check half messages soon. Java's broker filters by SQL92 only with this setting.
SETTINGS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "enablePropertyFilter": "true"}
SEND_TIMEOUT_S = 10
TIMEOUT_S = 60.0
SQL = "colour IN ('c1', 'c4') OR TAGS = 'tag2'"
TAGS = "tag0 || tag2"


@pytest.fixture(scope="module", params=BROKERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Starts this project's NameServer and a broker of either kind."""
    directory = tmp_path_factory.mktemp(request.param)
    namesrv = gantry_namesrv(directory / "namesrv")
    try:
        broker = BROKERS[request.param](directory / "broker", namesrv.address, **SETTINGS)
        try:
            yield Cluster(namesrv, broker)
        finally:
            broker.kill()
    finally:
        namesrv.kill()


def to_message(topic: str, sent: Sent) -> Message:
    return Message(topic, sent.body, tags=sent.tags, keys=sent.keys, flag=sent.flag, properties=dict(sent.properties))


def from_message(message: MessageExt) -> Sent:
    return Sent.of_parts(message.body, message.tags, message.properties.get("KEYS"), message.flag, message.properties)


async def send(cluster: Cluster, *messages: Message) -> None:
    async with Producer(cluster.address, "interop_python") as producer:
        for message in messages:
            await producer.send(message, timeout=SEND_TIMEOUT_S)


async def receive(
    cluster: Cluster,
    topic: str,
    count: int,
    *,
    orderly: bool = False,
    **wanted: Unpack[MessageFilter],
) -> list[MessageExt]:
    """Returns `count` messages, received by this project's push consumer."""
    received: list[MessageExt] = []
    complete = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        received.append(message)
        if len(received) == count:
            complete.set()

    consumer = PushConsumer(
        cluster.address,
        f"push_{'-'.join(wanted)}_{topic}",
        handle,
        orderly=orderly,
        start_from="earliest",
    )
    consumer.subscribe(topic, **wanted)
    async with consumer, asyncio.timeout(TIMEOUT_S):
        await complete.wait()
    return received


async def poll(cluster: Cluster, topic: str, count: int, **wanted: Unpack[MessageFilter]) -> list[MessageExt]:
    """Returns `count` messages, received by this project's lite pull consumer."""
    received: list[MessageExt] = []
    consumer = LitePullConsumer(cluster.address, f"pull_{'-'.join(wanted)}_{topic}", start_from="earliest")
    consumer.subscribe(topic, **wanted)
    async with consumer, asyncio.timeout(TIMEOUT_S):
        while len(received) < count:
            received += await consumer.poll(timeout=0.5)
    return received


@pytest.mark.interop(feature="compression")
@pytest.mark.parametrize("codec", CompressionType, ids=lambda codec: codec.name)
async def test_what_java_compresses(cluster: Cluster, topic: str, codec: CompressionType) -> None:
    sent = [Sent(b"compressible %d " % n * 2000, tags=codec.name) for n in range(3)]
    await asyncio.to_thread(produce_compressed, cluster.address, topic, sent, codec)
    received = await receive(cluster, topic, len(sent))
    assert sorted(map(from_message, received)) == sorted(sent)
    flag = compression_flag(codec) & COMPRESSION_MASK
    assert {message.sys_flag & COMPRESSION_MASK for message in received} == {flag}


def produce_compressed(namesrv: str, topic: str, messages: list[Sent], codec: CompressionType) -> None:
    with tempfile.TemporaryDirectory() as home:
        command = command_line(
            *("org.gantrymq.interop.Produce", namesrv, "interop_compressed", topic, "sync"),
            home=Path(home),
            options=[f"-Drocketmq.message.compressType={codec.name}"],
        )
        lines = "\n".join(message.line() for message in messages)
        result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.interop(feature="ordered messages")
async def test_javas_order_is_kept_here(cluster: Cluster, topic: str) -> None:
    lines = [message.line(queue_id=n % 2) for n, message in enumerate(sample(40))]
    await asyncio.to_thread(produce, cluster.address, topic, lines)
    received = await receive(cluster, topic, 40, orderly=True)
    for queue_id in (0, 1):
        in_queue = [message for message in received if message.queue_id == queue_id]
        assert [message.queue_offset for message in in_queue] == list(range(20))
        assert [message.flag for message in in_queue] == list(range(queue_id, 40, 2))


@pytest.mark.interop(feature="ordered messages")
async def test_the_order_of_here_is_kept_by_java(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.address, "interop_python") as producer:
        for step in range(10):
            for key in ("one", "two", "three", "four", "five"):
                message = Message(topic, b"%d" % step, keys=key, flag=step, sharding_key=key)
                await producer.send(message, timeout=SEND_TIMEOUT_S, select=select_by_hash(key))
    received = await asyncio.to_thread(consume, cluster.address, topic, 50, mode="orderly")
    for key in ("one", "two", "three", "four", "five"):
        of_key = [line for line in received if line["keys"] == key]
        assert [line["flag"] for line in of_key] == list(range(10))
        assert len({line["queue_id"] for line in of_key}) == 1


@pytest.mark.interop(feature="delayed messages")
async def test_what_java_delays(cluster: Cluster, topic: str) -> None:
    (sent,) = sample(1)
    await asyncio.to_thread(produce, cluster.address, topic, [sent.line(delay_level=1)])
    (received,) = await receive(cluster, topic, 1)
    assert from_message(received) == sent
    assert received.topic == topic
    assert received.store_timestamp - received.born_timestamp >= 900


@pytest.mark.interop(feature="delayed messages")
async def test_what_is_delayed_here(cluster: Cluster, topic: str) -> None:
    sent = [Message(topic, b"by level", delay_level=1), Message(topic, b"by time", delay=1.5)]
    await send(cluster, *sent)
    received = await asyncio.to_thread(consume, cluster.address, topic, 2)
    late_ms = {Sent.of(line).body: line["store_timestamp"] - line["born_timestamp"] for line in received}
    assert late_ms.keys() == {b"by level", b"by time"}
    assert late_ms[b"by level"] >= 900
    assert late_ms[b"by time"] >= 1400


@pytest.mark.interop(feature="transactions")
async def test_javas_transactions(cluster: Cluster, topic: str) -> None:
    """Commits, immediate or after a check, are delivered. Rollbacks are not."""
    states = [
        ("COMMIT_MESSAGE", "UNKNOW"),
        ("ROLLBACK_MESSAGE", "UNKNOW"),
        ("UNKNOW", "ROLLBACK_MESSAGE"),
        ("UNKNOW", "COMMIT_MESSAGE"),
    ]
    lines = [
        Sent(f"{local} {check}".encode(), tags="t", properties=(("local", local), ("check", check))).line()
        for local, check in states
    ]
    arguments = (cluster.address, f"group_{topic}", topic, "2", "60")
    result = await asyncio.to_thread(
        lambda: _run("org.gantrymq.interop.TransactionProducer", *arguments, stdin="\n".join(lines))
    )
    assert result.returncode == 0, result.stderr[-4000:]
    received = await receive(cluster, topic, 2)
    assert sorted(message.body for message in received) == [b"COMMIT_MESSAGE UNKNOW", b"UNKNOW COMMIT_MESSAGE"]


@pytest.mark.interop(feature="filters")
async def test_choosing_of_javas_messages(cluster: Cluster, topic: str) -> None:
    sent = sample(30)
    await asyncio.to_thread(produce, cluster.address, topic, [message.line() for message in sent])
    for message_filter, wanted in choices(sent):
        pushed = await receive(cluster, topic, len(wanted), **message_filter)
        assert sorted(map(from_message, pushed)) == wanted
        polled = await poll(cluster, topic, len(wanted), **message_filter)
        assert sorted(map(from_message, polled)) == wanted


@pytest.mark.interop(feature="filters")
async def test_java_chooses_of_messages_from_here(cluster: Cluster, topic: str) -> None:
    sent = sample(30)
    await send(cluster, *(to_message(topic, message) for message in sent))
    (_, by_tags), (_, by_sql) = choices(sent)
    received = await asyncio.to_thread(consume, cluster.address, topic, len(by_tags), expression=TAGS)
    assert sorted(map(Sent.of, received)) == by_tags
    arguments = (cluster.address, f"sql_{topic}", topic, SQL, str(len(by_sql)), "60")
    result = await asyncio.to_thread(lambda: _run("org.gantrymq.interop.SqlConsume", *arguments))
    assert result.returncode == 0, result.stderr[-4000:]
    assert sorted(map(Sent.of, _lines(result))) == by_sql


def choices(sent: list[Sent]) -> list[tuple[MessageFilter, list[Sent]]]:
    """Returns filters and the messages that they select."""
    by_tags = [message for message in sent if message.tags in ("tag0", "tag2")]
    by_sql = [
        message for message in sent if dict(message.properties)["colour"] in ("c1", "c4") or message.tags == "tag2"
    ]
    return [({"tags": TAGS}, sorted(by_tags)), ({"sql": SQL}, sorted(by_sql))]
