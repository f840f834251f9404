"""Delay levels, send-back and dead-letter messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import Peer, config

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, encode_properties
from gantrymq.remoting.client import RemotingClient


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store", message_delay_level="1s 1s 1s 1s 2h"))
    await broker.start()
    yield broker
    await broker.stop()


async def next_message(peer: Peer, topic: str, offset: int = 0) -> MessageExt:
    response = await peer.pull(topic, offset, suspend_ms=8000)
    [message] = decode_messages(response.body)
    return message


async def send_back(peer: Peer, message: MessageExt, delay_level: int = 0, max_times: int | None = None) -> int:
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset, group="consumers", delay_level=delay_level, max_reconsume_times=max_times
    )
    return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code


async def test_delayed_message_comes_when_due(peer: Peer) -> None:
    await peer.send("orders", b"at once")
    started = time.monotonic()
    sent = await peer.send("orders", b"later", properties={"DELAY": "1", "TAGS": "t"})
    assert sent.code == ResponseCode.SUCCESS
    message = await next_message(peer, "orders", 1)
    assert time.monotonic() - started >= 0.99
    assert (message.body, message.tags, message.queue_id) == (b"later", "t", 0)


async def test_delayed_message_survives_a_restart(tmp_path: Path, remoting: RemotingClient) -> None:
    settings = config(tmp_path / "other", message_delay_level="1s")
    for run in range(2):
        broker = Broker(settings)
        await broker.start()
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        if run == 0:
            await peer.send("orders", b"first")
            await peer.send("orders", b"later", properties={"DELAY": "9"})
        else:
            assert (await next_message(peer, "orders", 1)).body == b"later"
        await broker.stop()


@pytest.mark.parametrize(("unit_mode", "flag"), [(True, 2), (False, 0)])
async def test_unit_mode_becomes_the_flag_of_a_new_retry_topic(
    peer: Peer, broker: Broker, unit_mode: bool, flag: int
) -> None:
    await peer.send("orders", b"x")
    original = await next_message(peer, "orders")
    header = ConsumerSendMsgBackRequestHeader(
        offset=original.commit_log_offset, group="consumers", delay_level=0, unit_mode=unit_mode
    )
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
    topic = broker.topics.get("%RETRY%consumers")
    assert topic is not None
    assert topic.topic_sys_flag == flag


async def test_sent_back_message_comes_again_with_its_history(peer: Peer) -> None:
    await peer.send("orders", b"hard", properties={"UNIQ_KEY": "K", "TAGS": "t"})
    original = await next_message(peer, "orders")
    assert await send_back(peer, original) == ResponseCode.SUCCESS
    again = await next_message(peer, "%RETRY%consumers")
    assert (again.body, again.reconsume_times, again.msg_id, again.tags) == (b"hard", 1, "K", "t")
    assert again.properties["RETRY_TOPIC"] == "orders"
    assert again.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id


@pytest.mark.parametrize("room", [120, 60, 0])
async def test_a_message_comes_again_however_long_its_properties_are(peer: Peer, room: int) -> None:
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    fixed = {"UNIQ_KEY": "K", "pad": ""}
    pad = "x" * (MAX_PROPERTIES_LENGTH - len(encode_properties(fixed | added)) - room)
    sent = await peer.send("orders", b"hard", properties=fixed | {"pad": pad})
    assert sent.code == ResponseCode.SUCCESS
    original = await next_message(peer, "orders")
    assert await send_back(peer, original) == ResponseCode.SUCCESS
    again = await next_message(peer, "%RETRY%consumers")
    assert (again.body, again.reconsume_times, again.properties["pad"]) == (b"hard", 1, pad)
    assert await send_back(peer, again, max_times=1) == ResponseCode.SUCCESS
    assert (await next_message(peer, "%DLQ%consumers")).properties["pad"] == pad


async def test_exhausted_message_is_a_dead_letter(peer: Peer) -> None:
    await peer.send("orders", b"hopeless", reconsume_times=3)
    original = await next_message(peer, "orders")
    assert await send_back(peer, original, max_times=3) == ResponseCode.SUCCESS
    assert (await next_message(peer, "%DLQ%consumers")).body == b"hopeless"


async def test_send_to_the_retry_topic_after_too_many_times_is_a_dead_letter(peer: Peer) -> None:
    await peer.send("%RETRY%consumers", b"x", reconsume_times=3, max_reconsume_times=2, properties={"DELAY": "1"})
    assert (await next_message(peer, "%DLQ%consumers")).body == b"x"


async def test_send_back_of_nothing_is_refused(peer: Peer) -> None:
    await peer.send("orders", b"x")
    message = await next_message(peer, "orders")
    message.commit_log_offset += 1
    assert await send_back(peer, message) == ResponseCode.SYSTEM_ERROR
    message.commit_log_offset = 2**60
    assert await send_back(peer, message) == ResponseCode.SYSTEM_ERROR
