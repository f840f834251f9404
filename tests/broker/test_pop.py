"""Pop over real connections.

The tests cover exclusive delivery, long polling, acknowledgements and redelivery.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import config, server_of, until_freed, weak
from pop_support import Popped, PopPeer, now_ms
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.pop import (
    AckMessageRequestHeader,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
)
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.message_store import MessageStore

TOPIC, GROUP = "orders", "poppers"
#: Longest time until an unacknowledged message is redelivered, in seconds.
#:
#: It includes the grace period, two seconds, and the ticks of timer and log.
BACK_S = 12.0


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    broker.topics.put(TopicConfig(TOPIC, 4, 4))
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[PopPeer]:
    """A second member of the group."""
    client = RemotingClient()
    yield PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
    await client.close()


async def send(peer: PopPeer, count: int, **options: object) -> list[bytes]:
    bodies = [b"%04d" % i for i in range(count)]
    for i, body in enumerate(bodies):
        await peer.send(TOPIC, body, queue_id=i % 4, **options)  # type: ignore[arg-type]
    return bodies


def bodies(messages: list[Popped]) -> list[bytes]:
    return sorted(one.body for one in messages)


def records_in(store: MessageStore, topic: str) -> int:
    return sum(store.queue(topic, queue_id).max_offset for queue_id in store.topics().get(topic, []))


# -- pop --------------------------------------------------------------------------------------------------------------


async def test_each_message_is_handed_out_once(peer: PopPeer, other: PopPeer) -> None:
    sent = await send(peer, 100)
    taken: list[Popped] = []
    for _ in range(20):
        answers = await asyncio.gather(peer.messages(TOPIC, count=7), other.messages(TOPIC, count=7))
        taken += [one for answer in answers for one in answer]
    assert bodies(taken) == sent
    assert (await peer.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT


async def test_the_answer_says_where_each_message_is_from(peer: PopPeer) -> None:
    for i in range(3):
        await peer.send(TOPIC, b"%d" % i, queue_id=2)
    before = now_ms()
    response = await peer.pop(TOPIC, queue_id=2, count=2)
    fields = response.ext_fields
    assert (response.code, response.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert fields["startOffsetInfo"] == "0 2 0"
    assert fields["msgOffsetInfo"] == "0 2 0,1"
    assert fields["invisibleTime"] == "60000"
    assert fields["restNum"] == "1"
    assert 0 <= int(fields["reviveQid"]) < 8
    assert before <= int(fields["popTime"]) <= now_ms()


async def test_tags_and_sql_choose(peer: PopPeer) -> None:
    for i in range(9):
        await peer.send(TOPIC, b"%d" % i, properties={"TAGS": "abc"[i % 3], "n": str(i)})
    chosen = await peer.messages(TOPIC, exp="a || c", exp_type="TAG")
    assert bodies(chosen) == [b"0", b"2", b"3", b"5", b"6", b"8"]
    by_sql: list[Popped] = []
    while len(by_sql) < 2:
        # On a busy machine, one pop can exceed its time for filtering by properties.
        by_sql += await peer.messages(TOPIC, group="by_sql", exp="n > 6", exp_type="SQL92")
    assert bodies(by_sql) == [b"7", b"8"]
    assert await peer.messages(TOPIC, group="no_match", exp="x", exp_type="TAG") == []


async def test_a_new_group_begins_where_it_says(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 20)
    assert len(await peer.messages(TOPIC, group="from_min")) == 20
    assert len(await peer.messages(TOPIC, group="from_max_young", init_mode=1)) == 20
    broker.config.init_pop_offset_by_check_msg_in_mem = False
    assert bodies(await peer.messages(TOPIC, group="from_max", init_mode=1)) == [b"0016", b"0017", b"0018", b"0019"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"count": 33}, ResponseCode.INVALID_PARAMETER),
        ({"count": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_ms": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_ms": 1 << 40}, ResponseCode.INVALID_PARAMETER),
        ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"group": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_what_cannot_be_is_refused(peer: PopPeer, changed: dict[str, object], code: int) -> None:
    assert (await peer.pop(TOPIC, **changed)).code == code  # type: ignore[arg-type]


async def test_unknown_topic_and_forbidden_group(peer: PopPeer, broker: Broker) -> None:
    assert (await peer.pop("nowhere")).code == ResponseCode.TOPIC_NOT_EXIST
    broker.groups.put([SubscriptionGroupConfig("forbidden", consume_enable=False)])
    assert (await peer.pop(TOPIC, group="forbidden")).code == ResponseCode.NO_PERMISSION


async def test_peek_takes_nothing(peer: PopPeer) -> None:
    await send(peer, 5)
    header = PeekMessageRequestHeader(topic=TOPIC, queue_id=-1, max_msg_nums=32, consumer_group=GROUP)
    for _ in range(2):
        peeked = await peer.ask(RequestCode.PEEK_MESSAGE, header)
        assert len(bodies_in(peeked.body)) == 5
    assert len(await peer.messages(TOPIC)) == 5
    assert (await peer.ask(RequestCode.PEEK_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND


def bodies_in(body: bytes) -> list[bytes]:
    return [message.body for message in decode_messages(body)]


# -- long polling -----------------------------------------------------------------------------------------------------


async def test_a_waiting_pop_gets_what_comes(peer: PopPeer, other: PopPeer, broker: Broker) -> None:
    waiting = asyncio.create_task(other.messages(TOPIC, poll_ms=15_000))
    one_queue = asyncio.create_task(other.messages(TOPIC, queue_id=1, poll_ms=15_000, group="second"))
    await until(lambda: len(broker.pops.waiting) == 2)
    await peer.send(TOPIC, b"for both", queue_id=1)
    async with asyncio.timeout(10):
        assert bodies(await waiting) == bodies(await one_queue) == [b"for both"]


async def test_of_many_who_wait_each_message_wakes_one(peer: PopPeer, other: PopPeer, broker: Broker) -> None:
    waiting = {asyncio.create_task(other.messages(TOPIC, count=1, poll_ms=15_000)) for _ in range(20)}
    await until(lambda: len(broker.pops.waiting) == 20)
    info = PollingInfoRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=-1)
    assert (await peer.ask(RequestCode.POLLING_INFO, info)).ext_fields["pollingNum"] == "20"
    await send(peer, 12)
    await until(lambda: sum(task.done() for task in waiting) == 12)
    await asyncio.sleep(0.05)
    done = [task for task in waiting if task.done()]
    assert len(done) == 12
    assert len(broker.pops.waiting) == 8
    assert bodies([one for task in done for one in task.result()]) == [b"%04d" % i for i in range(12)]
    for task in waiting:
        task.cancel()


async def test_a_wait_ends_with_its_time(peer: PopPeer, broker: Broker) -> None:
    response = await peer.pop(TOPIC, poll_ms=300)
    assert (response.code, response.ext_fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
    assert len(broker.pops.waiting) == 0


async def test_too_many_who_wait_are_refused(tmp_path: Path) -> None:
    crowded = Broker(config(tmp_path / "crowded", pop_polling_size=1))
    await crowded.start()
    client = RemotingClient()
    try:
        crowded.topics.put(TopicConfig(TOPIC, 1, 1))
        one = PopPeer(await client.connection(f"127.0.0.1:{crowded.port}"))
        first = asyncio.create_task(one.pop(TOPIC, poll_ms=15_000))
        await until(lambda: len(crowded.pops.waiting) == 1)
        assert (await one.pop(TOPIC, poll_ms=15_000)).code == ResponseCode.POLLING_FULL
        # A broker that stops answers its pending requests.
        stopping = asyncio.create_task(crowded.stop())
        async with asyncio.timeout(10):
            assert (await first).code == ResponseCode.POLLING_TIMEOUT
        await stopping
    finally:
        await client.close()


async def test_a_waiting_pop_that_fails_is_answered(peer: PopPeer, broker: Broker) -> None:
    """A pending pop that fails gets an error.

    The timer accepts no more checkpoints, so the messages stay in the queue.
    """
    waiting = asyncio.create_task(peer.pop(TOPIC, invisible_ms=2500, poll_ms=15_000))
    await until(lambda: len(broker.pops.waiting) == 1)
    broker.config.store.timer_max_delay_sec = 0
    await peer.send(TOPIC, b"x")
    async with asyncio.timeout(10):
        assert (await waiting).code == ResponseCode.MESSAGE_ILLEGAL
    broker.config.store.timer_max_delay_sec = 60
    assert len(await peer.messages(TOPIC)) == 1


async def test_a_client_that_leaves_waits_no_more(peer: PopPeer, other: PopPeer, broker: Broker) -> None:
    task = asyncio.create_task(other.pop(TOPIC, poll_ms=15_000))
    await until(lambda: len(broker.pops.waiting) == 1)
    # `peer` has sent nothing yet.
    [closed] = weak(server_of(broker).connections)
    stays = asyncio.create_task(peer.pop(TOPIC, poll_ms=15_000, group="second"))
    await until(lambda: len(broker.pops.waiting) == 2)
    other.connection.abort()
    await until(lambda: len(broker.pops.waiting) == 1)
    await peer.send(TOPIC, b"for who stays")
    assert (await stays).code == ResponseCode.SUCCESS
    # The broker keeps no entry for a closed connection.
    await until_freed(closed)
    with pytest.raises(Exception, match="closed"):
        await task
    await send(peer, 4)
    assert len(await peer.messages(TOPIC)) == 5


async def test_notification_tells_of_messages(peer: PopPeer, other: PopPeer, broker: Broker) -> None:
    header = NotificationRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=-1, poll_time=0)
    assert (await peer.ask(RequestCode.NOTIFICATION, header)).ext_fields["hasMsg"] == "false"
    header.poll_time = 15_000
    waiting = [asyncio.create_task(other.ask(RequestCode.NOTIFICATION, header)) for _ in range(2)]
    await until(lambda: len(broker.pops.waiting_notifications) == 2)
    await peer.send(TOPIC, b"x", queue_id=3)
    async with asyncio.timeout(10):
        for task in waiting:
            assert (await task).ext_fields["hasMsg"] == "true"
    assert len(await peer.messages(TOPIC)) == 1
    header.poll_time = 0
    assert (await peer.ask(RequestCode.NOTIFICATION, header)).ext_fields["hasMsg"] == "false"


# -- acknowledgements -------------------------------------------------------------------------------------------------


async def test_what_is_acknowledged_in_time_costs_no_record(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 40)
    before = broker.store.max_physical_offset
    while taken := await peer.messages(TOPIC, count=10):
        for one in taken:
            assert (await peer.ack(one)).code == ResponseCode.SUCCESS
    assert broker.store.max_physical_offset == before
    assert [broker.offsets.query(GROUP, TOPIC, queue_id) for queue_id in range(4)] == [10] * 4
    assert len(broker.pops.buffer) == 0


async def test_offsets_wait_for_the_oldest_pop(peer: PopPeer, broker: Broker) -> None:
    for i in range(3):
        await peer.send(TOPIC, b"%d" % i)
    first, second, third = [(await peer.messages(TOPIC, queue_id=0, count=1))[0] for _ in range(3)]
    await peer.ack(second)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 0
    await peer.ack(first)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    await peer.ack(third)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 3


async def test_batch_ack(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 8)
    taken = await peer.messages(TOPIC)
    acks = []
    for queue_id in range(4):
        of_queue = [one for one in taken if one.message.queue_id == queue_id]
        handle = of_queue[0].handle
        bits = sum(1 << (one.message.queue_offset - handle.start_offset) for one in of_queue)
        acks.append(
            {
                "c": GROUP,
                "t": TOPIC,
                "r": "0",
                "so": handle.start_offset,
                "q": queue_id,
                "rq": handle.revive_queue_id,
                "pt": handle.pop_time,
                "it": handle.invisible_time,
                "b": base64.b64encode(bits.to_bytes(4, "little")).decode(),
            }
        )
    body = json.dumps({"acks": acks, "brokerName": "broker-a"}).encode()
    assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == ResponseCode.SUCCESS
    assert [broker.offsets.query(GROUP, TOPIC, queue_id) for queue_id in range(4)] == [2] * 4
    assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE)).code == ResponseCode.NO_MESSAGE
    assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=b"[]")).code == ResponseCode.SYSTEM_ERROR


async def test_acks_that_cannot_be(peer: PopPeer) -> None:
    await peer.send(TOPIC, b"x")
    (one,) = await peer.messages(TOPIC)

    async def ack(**changed: object) -> int:
        header = AckMessageRequestHeader(
            consumer_group=GROUP, topic=TOPIC, queue_id=0, extra_info=str(one.handle), offset=0
        )
        for name, value in changed.items():
            setattr(header, name, value)
        return (await peer.ask(RequestCode.ACK_MESSAGE, header)).code

    assert await ack(topic="nowhere") == ResponseCode.TOPIC_NOT_EXIST
    assert await ack(queue_id=9) == ResponseCode.MESSAGE_ILLEGAL
    assert await ack(offset=7) == ResponseCode.NO_MESSAGE
    for wrong in ("", "1", "1 2 three", f"{one.handle}x"):
        assert await ack(extra_info=wrong) == ResponseCode.SYSTEM_ERROR
    assert await ack() == ResponseCode.SUCCESS
    # The broker has parsed the same words before.
    for wrong in ("", "1", "1 2 three", f"{one.handle}x", f"{one.handle} 5"):
        expected = ResponseCode.SUCCESS if wrong.endswith(" 5") else ResponseCode.SYSTEM_ERROR
        assert await ack(extra_info=wrong) == expected


async def test_acks_of_several_pops_in_turn(peer: PopPeer, broker: Broker) -> None:
    """The broker caches the words that the handles of a pop share, so handles of other pops must replace them."""
    await send(peer, 16)
    pops = [await peer.messages(TOPIC, queue_id=queue_id, count=2) for queue_id in range(4) for _ in range(2)]
    for of_turn in zip(*pops, strict=True):
        for one in of_turn:
            assert (await peer.ack(one)).code == ResponseCode.SUCCESS
    assert [broker.offsets.query(GROUP, TOPIC, queue_id) for queue_id in range(4)] == [4] * 4
    assert len(broker.pops.buffer) == 0


async def test_a_reset_of_the_group_wins(peer: PopPeer, broker: Broker) -> None:
    for i in range(4):
        await peer.send(TOPIC, b"%d" % i)
    assert len(await peer.messages(TOPIC, queue_id=0, count=2)) == 2
    broker.offsets.commit(GROUP, TOPIC, 0, 3)
    assert bodies(await peer.messages(TOPIC, queue_id=0)) == [b"3"]


# -- redelivery -------------------------------------------------------------------------------------------------------


async def pop_again(peer: PopPeer, count: int, **options: object) -> list[Popped]:
    """Pops until `count` messages are received."""
    taken: list[Popped] = []
    async with asyncio.timeout(BACK_S):
        while len(taken) < count:
            taken += await peer.messages(TOPIC, poll_ms=5_000, **options)
    return taken


async def test_what_nobody_acknowledges_comes_back(peer: PopPeer, broker: Broker) -> None:
    await peer.send(TOPIC, b"done", properties={"TAGS": "a"})
    await peer.send(TOPIC, b"lost", properties={"TAGS": "a", "KEYS": "k"})
    began = now_ms()
    first = {one.body: one for one in await peer.messages(TOPIC, invisible_ms=1000)}
    await peer.ack(first[b"done"])

    (again,) = await pop_again(peer, 1)

    assert now_ms() - began >= 1000
    message = again.message
    assert (message.body, message.topic, message.tags, message.keys) == (b"lost", TOPIC, "a", ["k"])
    assert message.reconsume_times == 1
    assert message.properties["1ST_POP_TIME"] == str(first[b"lost"].handle.pop_time)
    assert message.properties["ORIGIN_GROUP"] == GROUP
    assert again.handle.retry_flag == "1"
    assert (await peer.ack(again)).code == ResponseCode.SUCCESS
    assert broker.offsets.query(GROUP, pop_retry_topic(TOPIC, GROUP), 0) == 1


async def test_invisible_time_is_changed(peer: PopPeer, broker: Broker) -> None:
    await peer.send(TOPIC, b"later")
    await peer.send(TOPIC, b"suspended")
    taken = {one.body: one for one in await peer.messages(TOPIC)}
    changed = await peer.change(taken[b"later"], 100)
    assert changed.code == ResponseCode.SUCCESS
    assert changed.ext_fields["invisibleTime"] == "100"
    assert (await peer.change(taken[b"suspended"], 100, suspend=True)).code == ResponseCode.SUCCESS
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    times = {one.body: one.message.reconsume_times for one in await pop_again(peer, 2)}
    assert times == {b"later": 1, b"suspended": 0}


async def test_after_the_last_attempt_it_is_a_dead_letter(peer: PopPeer, broker: Broker) -> None:
    broker.groups.put([SubscriptionGroupConfig(GROUP, retry_max_times=0)])
    await peer.send(TOPIC, b"poison")
    (one,) = await peer.messages(TOPIC, invisible_ms=10)
    await until(lambda: records_in(broker.store, f"%DLQ%{GROUP}") == 1, BACK_S)
    assert one.body == b"poison"
    letter = (await peer.pull(f"%DLQ%{GROUP}")).body
    assert bodies_in(letter) == [b"poison"]
    assert broker.context.stats.dead_letters == {(TOPIC, GROUP): 1}
    assert (await peer.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT


async def test_what_is_handed_out_survives_a_restart(tmp_path: Path) -> None:
    """Messages in flight stay in flight after a restart, because their checkpoints are in the log.

    A redelivered message goes to the retry topic that the new broker's configuration names.
    """
    client = RemotingClient()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    broker.topics.put(TopicConfig(TOPIC, 4, 4))
    peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 8)
    taken = await peer.messages(TOPIC, invisible_ms=2500)
    assert len(taken) == 8
    for one in taken[:4]:
        await peer.ack(one)
    await broker.stop()

    broker = Broker(config(tmp_path / "store", enable_retry_topic_v2=True))
    await broker.start()
    try:
        peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
        assert [broker.offsets.query(GROUP, TOPIC, queue_id) for queue_id in range(4)] == [2] * 4
        for one in taken[4:6]:
            await peer.ack(one)
        again = await pop_again(peer, 2)
        assert bodies(again) == bodies(taken[6:])
        assert {one.handle.retry_flag for one in again} == {"2"}
        for one in again:
            assert (await peer.ack(one)).code == ResponseCode.SUCCESS
        assert broker.offsets.query(GROUP, pop_retry_topic(TOPIC, GROUP, v2=True), 0) == 2
    finally:
        await client.close()
        await broker.stop()


async def test_a_stopping_broker_hands_out_nothing(peer: PopPeer, broker: Broker) -> None:
    """A broker that is stopping delivers no messages to pops, because it would lose their state."""
    await send(peer, 4)
    (one,) = await peer.messages(TOPIC, count=1, queue_id=0, order=True)
    await broker.pops.stop()
    assert (await peer.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT
    assert (await peer.pop(TOPIC, order=True)).code == ResponseCode.POLLING_TIMEOUT
    assert (await peer.ack(one)).code == ResponseCode.SUCCESS
    assert broker.offsets.query(GROUP, TOPIC, 0) == 1


async def test_a_batch_of_more_messages_than_a_pop_has(peer: PopPeer, broker: Broker) -> None:
    """An acknowledgement for more messages than a pop can return is refused.

    Decoding a bit map for a million messages would block the event loop for seconds.
    """
    await send(peer, 4)
    ack = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60_000}
    body = json.dumps({"acks": [{**ack, "b": base64.b64encode(b"\xff" * 131_072).decode()}]}).encode()
    began = time.thread_time()
    assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body, timeout_ms=60_000)).code == 1
    assert time.thread_time() - began < 1


async def test_the_retry_topics_go_with_their_topic(peer: PopPeer, broker: Broker) -> None:
    await peer.send(TOPIC, b"old")
    await peer.messages(TOPIC, invisible_ms=10)
    retry = pop_retry_topic(TOPIC, GROUP)
    await until(lambda: records_in(broker.store, retry) == 1, BACK_S)
    deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": TOPIC})
    assert deleted.code == ResponseCode.SUCCESS
    assert broker.topics.get(retry) is None
    broker.topics.put(TopicConfig(TOPIC, 4, 4))
    await peer.send(TOPIC, b"new")
    assert bodies(await peer.messages(TOPIC)) == [b"new"]


REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        ({"so": 0, "pt": 1, "it": 1, "n": 1 << 31, "q": 0, "t": TOPIC, "c": GROUP}, {"TAGS": "ck"}),
        ({}, {"TAGS": "ack"}),
        ({}, {"TAGS": "ack", "TIMER_OUT_MS": "1", "TIMER_DELIVER_MS": "\N{SUPERSCRIPT TWO}"}),
        ({}, {"TAGS": "ack", "TIMER_OUT_MS": "1", "TIMER_DELIVER_MS": "9" * 18}),
    ],
)
async def test_nonsense_in_the_revive_log_stops_nothing(
    peer: PopPeer, broker: Broker, body: dict[str, object], properties: dict[str, str]
) -> None:
    host = encode_host("127.0.0.1", 1)
    for queue_id in range(8):
        queue = broker.store.queue(REVIVE_LOG, queue_id)
        encoded = encode_properties(properties)
        with broker.store.waiting():
            broker.store.append(queue, 0, 0, 0, host, 0, json.dumps(body).encode(), encoded, 0)
    await until(lambda: broker.pops.revive_lags() == [0] * 8)
    for i in range(2):
        await peer.send(TOPIC, b"%d" % i)
    first, second = await peer.messages(TOPIC, invisible_ms=2000)
    await peer.ack(first)
    assert bodies(await pop_again(peer, 1)) == [second.body]


async def test_a_revive_log_that_lost_its_end_is_read_on(tmp_path: Path) -> None:
    """The revive log is processed further after it lost its end.

    `consumerOffset.json` is flushed before the log, so it can be ahead after a power failure.
    """
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    for queue_id in range(8):
        broker.offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_LOG, queue_id, 5)
    await broker.stop()
    client = RemotingClient()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    try:
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
        await peer.send(TOPIC, b"x")
        assert len(await peer.messages(TOPIC, invisible_ms=10)) == 1
        assert bodies(await pop_again(peer, 1)) == [b"x"]
    finally:
        await client.close()
        await broker.stop()


async def test_what_was_taken_comes_back_though_it_is_too_large_now(tmp_path: Path) -> None:
    client = RemotingClient()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    broker.topics.put(TopicConfig(TOPIC, 4, 4))
    peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
    await peer.send(TOPIC, b"large" * 100)
    await peer.send(TOPIC, b"delayed" * 100, properties={"DELAY": "1"})
    assert len(await peer.messages(TOPIC, invisible_ms=2000)) == 1
    await broker.stop()

    settings = config(tmp_path / "store")
    settings.store.max_message_size = 300
    broker = Broker(settings)
    await broker.start()
    try:
        peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
        assert bodies(await pop_again(peer, 2)) == [b"delayed" * 100, b"large" * 100]
    finally:
        await client.close()
        await broker.stop()
