"""Timer messages and recalls over real connections, with the real clock."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from struct import unpack

import pytest
from broker_support import Peer, config
from constants import change_constant
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.protocol.recall_handle import RecallHandle
from gantrymq.protocol.topic_name import TIMER_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.processes import ProcessCluster


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(settings(tmp_path)) as broker:
        yield broker


def settings(tmp_path: Path, **changed: object) -> BrokerConfig:
    """Uses slots of 100 ms, so that tests are fast."""
    result = config(tmp_path / "store", recall_message_enable=True)
    result.store.timer_precision_ms = 100
    result.store.timer_flush_interval_ms = 50
    for name, value in changed.items():
        setattr(result.store, name, value)
    return result


@asynccontextmanager
async def running(settings: BrokerConfig) -> AsyncIterator[Broker]:
    broker = Broker(settings)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def peer_of(broker: Broker, remoting: RemotingClient) -> Peer:
    return Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def messages(peer: Peer, topic: str, count: int, first: int = 0) -> list[MessageExt]:
    """Waits up to 15 s for the next `count` messages of a queue and returns them."""
    found: list[MessageExt] = []
    deadline = time.monotonic() + 15
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        response = await peer.pull(topic, first + len(found), suspend_ms=5000)
        if response.code == ResponseCode.SUCCESS:
            found += decode_messages(response.body)
    return found


async def recall(peer: Peer, topic: str, handle: str | None) -> RemotingCommand:
    return await peer.ask(
        RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader(topic=topic, recall_handle=handle or "")
    )


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
async def test_comes_when_asked_for(peer: Peer, name: str) -> None:
    await peer.send("orders", b"at once")
    asked_ms = now_ms() + 1000
    value = {"TIMER_DELIVER_MS": asked_ms, "TIMER_DELAY_MS": 1000, "TIMER_DELAY_SEC": 1}[name]
    sent = await peer.send("orders", b"later", queue_id=0, properties={name: str(value), "TAGS": "t"})
    assert sent.code == ResponseCode.SUCCESS
    header = sent.read_header(SendMessageResponseHeader)
    assert header.queue_id == 0
    [message] = await messages(peer, "orders", 1, first=1)
    # The message must not be late by one second or by twice the delay. The margin allows for a busy machine.
    assert asked_ms <= message.store_timestamp <= now_ms() < asked_ms + 3000
    assert (message.body, message.tags, message.topic) == (b"later", "t", "orders")
    assert {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= message.properties.keys()


async def test_what_is_due_already_isnt_delayed(peer: Peer) -> None:
    sent = await peer.send("orders", b"now", properties={"TIMER_DELIVER_MS": str(now_ms() - 5)})
    assert sent.read_header(SendMessageResponseHeader).recall_handle is None
    [message] = decode_messages((await peer.pull("orders")).body)
    assert "TIMER_OUT_MS" not in message.properties


async def test_a_delay_level_wins(peer: Peer) -> None:
    """A delay level takes precedence over a timer delay. In this test, delay level 1 is one second."""
    await peer.send("orders", b"x", properties={"DELAY": "1", "TIMER_DELAY_SEC": "3600"})
    [message] = await messages(peer, "orders", 1)
    assert "TIMER_OUT_MS" not in message.properties


async def test_refused_beyond_the_longest_delay(peer: Peer) -> None:
    refused = await peer.send("orders", b"x", properties={"TIMER_DELAY_SEC": str(3 * 24 * 3600 + 1)})
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the max delay 259200000ms" in (refused.remark or "")


async def test_refused_when_the_slot_is_full(peer: Peer, broker: Broker) -> None:
    broker.config.store.timer_congest_num_each_slot = 1
    deliver = {"TIMER_DELIVER_MS": str(now_ms() + 60_000)}
    for number in (1, 2):
        assert (await peer.send("orders", b"x", properties=deliver)).code == ResponseCode.SUCCESS
        # A message counts when it is in its slot.
        await until(lambda number=number: broker.runtime.table()["timerCongestNum"] == str(number))
    codes = [(await peer.send("orders", b"x", properties=deliver)).code for _ in range(18)]
    assert set(codes) == {ResponseCode.SYSTEM_ERROR}


async def test_off(tmp_path: Path, remoting: RemotingClient) -> None:
    async with running(settings(tmp_path, timer_wheel_enable=False)) as broker:
        peer = await peer_of(broker, remoting)
        refused = await peer.send("orders", b"x", properties={"TIMER_DELAY_SEC": "5"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == "accurate timer message is not enabled, timerWheelEnable is false"
        for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
            assert (await peer.ask(code)).code == ResponseCode.SYSTEM_ERROR
        assert broker.runtime.table()["timerCongestNum"] == "0"


async def test_many_due_at_once_dont_hold_the_loop(peer: Peer, broker: Broker, wrong_clock: WrongClock) -> None:
    properties = {"TIMER_DELIVER_MS": str(now_ms() + 60_000)}
    for _ in range(6):
        await asyncio.gather(*(peer.send("orders", b"x", properties=properties) for _ in range(500)))
    # The broker adds stored messages to the timer wheel in the background.
    await until(lambda: broker.runtime.table()["timerCongestNum"] == "3000")
    # The clock changes meanwhile.
    wrong_clock.ahead_s = 60
    counts: set[int] = set()
    async with asyncio.timeout(60):
        while (count := broker.store.queue("orders", 0).max_offset) < 3000:
            counts.add(count)
            await asyncio.sleep(0)
    # The event loop had many iterations in between.
    assert len(counts) > 5
    await until(lambda: broker.runtime.table()["timerCongestNum"] == "0")
    assert broker.store.queue(TIMER_TOPIC, 0).max_offset == 3000


async def test_survives_a_restart(tmp_path: Path, remoting: RemotingClient) -> None:
    async with running(settings(tmp_path)) as broker:
        peer = await peer_of(broker, remoting)
        for n in range(20):
            await peer.send("orders", b"%d" % n, properties={"TIMER_DELAY_MS": "1200"})
        metrics = decode_json((await peer.ask(RequestCode.GET_TIMER_METRICS)).body, dict)
        assert metrics["timingCount"]["orders"]["count"] == 20
    async with running(settings(tmp_path)) as broker:
        peer = await peer_of(broker, remoting)
        found = await messages(peer, "orders", 20)
        assert sorted(int(message.body) for message in found) == list(range(20))

        async def none_waits() -> bool:
            metrics = decode_json((await peer.ask(RequestCode.GET_TIMER_METRICS)).body, dict)
            return bool(metrics["timingCount"]["orders"]["count"] == 0)

        await until(none_waits)
    async with running(settings(tmp_path)) as broker:
        assert broker.store.queue("orders", 0).max_offset == 20


async def test_an_idle_broker_makes_no_files_and_sleeps(tmp_path: Path, remoting: RemotingClient) -> None:
    async with running(settings(tmp_path)) as broker:
        peer = await peer_of(broker, remoting)
        await peer.send("orders", b"x")
        assert broker.jobs.find("deliver timer messages").due == inf
        checkpoint = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        read_ms, log_position, queue_offset, master, state, _, _ = unpack(">7q", checkpoint.body)
        assert abs(read_ms - now_ms()) < 5000
        assert (log_position, queue_offset, master, state) == (0, 0, 0, 0)
    root = tmp_path / "store"
    assert not {"timerwheel", "timerlog"} & set(os.listdir(root))
    assert not (root / "config" / "timercheck").exists()


async def test_killed_brokers_lose_and_repeat_nothing_and_are_never_early(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    """Killed brokers lose and repeat no message, and deliver none early.

    The log shows what was delivered after the last checkpoint. Java delivers those messages again.
    """
    due: dict[bytes, int] = {}
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    properties = {"timerPrecisionMs": "100", "flushIntervalConsumeQueue": "50"}
    for number in range(4):
        with ProcessCluster(tmp_path, broker_properties=properties) as cluster:
            [process] = cluster.brokers
            peer = Peer(await remoting.connection(process.address))
            for n in range(150):
                key = b"%d-%d" % (number, n)
                due[key] = now_ms() + rng.randrange(1500)
                sent = await peer.send("orders", key, properties={"TIMER_DELIVER_MS": str(due[key])})
                assert sent.code == ResponseCode.SUCCESS
            if number < 3:
                os.kill(process.pid, signal.SIGKILL)
                continue
            found: list[bytes] = []
            offset = 0
            deadline = time.monotonic() + 15
            while len(found) < len(due):
                assert time.monotonic() < deadline, f"seed {seed}: {len(due) - len(found)} are missing"
                response = await peer.pull("orders", offset, suspend_ms=500)
                for message in decode_messages(response.body) if response.code == ResponseCode.SUCCESS else ():
                    found.append(message.body)
                    offset = message.queue_offset + 1
                    assert message.store_timestamp >= due[message.body], f"seed {seed}: early"
            assert sorted(found) == sorted(due), f"seed {seed}: {len(found) - len(due)} are repeated"


async def test_recall(peer: Peer, broker: Broker) -> None:
    asked = {"TIMER_DELIVER_MS": str(now_ms() + 1000)}
    kept, dropped = [await peer.send("orders", body, properties=asked) for body in (b"kept", b"dropped")]
    handle = dropped.read_header(SendMessageResponseHeader).recall_handle
    answer = await recall(peer, "orders", handle)
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["msgId"]
    [message] = await messages(peer, "orders", 1)
    assert message.body == b"kept"
    await peer.send("orders", b"after", properties={"TIMER_DELAY_MS": "300"})
    assert [message.body for message in await messages(peer, "orders", 2)] == [b"kept", b"after"]
    assert kept.read_header(SendMessageResponseHeader).recall_handle != handle
    await until(lambda: broker.runtime.table()["timerCongestNum"] == "0")


async def test_recalls_of_one_slot_are_limited(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All recalls of a slot are in memory while the slot is delivered.

    The limit also applies to a recall that is sent as a message.
    """
    change_constant(monkeypatch, "timer.MAX_RECALLS_OF_SLOT", 2)
    # The very first message can be counted twice, because its file is created meanwhile.
    await peer.send("orders", b"", properties={"TIMER_DELAY_MS": "60000"})
    due_ms = now_ms() + 60_000
    properties = {"TIMER_DELIVER_MS": str(due_ms), "TIMER_DEL_UNIQKEY": "one"}
    for _ in range(2):
        assert (await peer.send("orders", b"", properties=properties)).code == ResponseCode.SUCCESS
    refused = await peer.send("orders", b"", properties=properties)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "2 messages of the same delivery time are recalled already" in (refused.remark or "")
    properties["TIMER_DELIVER_MS"] = str(due_ms + 60_000)
    assert (await peer.send("orders", b"", properties=properties)).code == ResponseCode.SUCCESS


async def test_recall_with_sync_flush(tmp_path: Path, remoting: RemotingClient) -> None:
    async with running(settings(tmp_path, flush_disk_type="SYNC_FLUSH")) as broker:
        peer = await peer_of(broker, remoting)
        sent = await peer.send("orders", b"x", properties={"TIMER_DELAY_MS": "60000"})
        handle = sent.read_header(SendMessageResponseHeader).recall_handle
        assert (await recall(peer, "orders", handle)).code == ResponseCode.SUCCESS
        assert broker.store.flushed_offset == broker.store.max_physical_offset


def handle(**changed: object) -> str:
    parts = {"topic": "orders", "broker_name": "broker-a", "timestamp_ms": now_ms() + 60_000, "unique_key": "K"}
    return RecallHandle(**(parts | changed)).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (handle(topic="others"), "recall failed, topic not match"),
        (handle(broker_name="b"), "recall failed, broker service not available"),
        (handle(timestamp_ms=5), "recall failed, timestamp invalid"),
        (handle(timestamp_ms=1 << 62), "recall failed, timestamp invalid"),
        (handle(unique_key="a\x02b"), ""),
        ("====", "recall handle is invalid"),
        ("no base64!", "recall handle is invalid"),
        ("djIgYSBiIGMgZA==", "recall handle is invalid"),
    ],
    # The handles contain the time, so explicit names are needed to be equal in all test workers.
    ids=["topic", "broker", "past", "far future", "two fields", "no text", "no base64", "version"],
)
async def test_bad_handles_are_refused(peer: Peer, text: str, remark: str) -> None:
    await peer.send("orders", b"x")
    refused = await recall(peer, "orders", text)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert remark in (refused.remark or "")


async def test_recalls_can_be_off_and_need_a_topic(peer: Peer, broker: Broker) -> None:
    assert (await recall(peer, "nowhere", handle(topic="nowhere"))).code == ResponseCode.TOPIC_NOT_EXIST
    broker.config.recall_message_enable = False
    assert (await recall(peer, "orders", handle())).code == ResponseCode.NO_PERMISSION
