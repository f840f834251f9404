"""The topic attributes `retention.ms` and `retention.bytes`, as clients of a broker see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from administration import beat, commit, queue, send
from broker_support import Peer, config, run_again
from pop_support import PopPeer, popped
from replicated_brokers import Replicas, copy_tables
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.metrics.consumer_lag import ConsumerLag
from gantrymq.broker.tables.attributes import retention_limits
from gantrymq.errors import StoreError
from gantrymq.protocol.bodies.pop import BatchAck, BatchAckBody
from gantrymq.protocol.bodies.stats import ConsumeStats, QueryConsumeTimeSpanBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.offset import QueueRequestHeader, ResetOffsetRequestHeader
from gantrymq.protocol.headers.pop import NotificationRequestHeader, PeekMessageRequestHeader
from gantrymq.protocol.headers.stats import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.message_store import MessageStore
from gantrymq.store.topic_retention import RetentionLimits

HOUR_S = 3600


async def set_attributes(peer: Peer, attributes: str, topic: str = "orders") -> None:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, attributes=attributes
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SUCCESS, response.remark


async def clean(broker: Broker) -> None:
    await run_again(broker.jobs, "delete what has expired")


async def min_offset(peer: Peer, topic: str = "orders") -> int:
    response = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic=topic, queue_id=0))
    return int(response.ext_fields["offset"])


async def send_then_wait_an_hour(peer: Peer, clock: WrongClock) -> None:
    """Sends three messages, and one an hour later."""
    await send(peer, 3)
    clock.ahead_s += HOUR_S
    # Python handles the first message with a header. Native code, which has the real clock, handles the next ones.
    assert (await peer.send("orders", b"new", producer_group="late producers")).code == ResponseCode.SUCCESS


async def test_pulls_begin_at_the_first_message_within_the_limit(
    peer: Peer, broker: Broker, wrong_clock: WrongClock
) -> None:
    await send_then_wait_an_hour(peer, wrong_clock)
    await set_attributes(peer, "+retention.ms=1800000")
    await clean(broker)
    assert await min_offset(peer) == 3
    old = await peer.pull("orders", 1)
    assert (old.code, old.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    assert [message.body for message in decode_messages((await peer.pull("orders", 3)).body)] == [b"new"]
    await set_attributes(peer, "-retention.ms")
    await clean(broker)
    assert await min_offset(peer) == 0
    assert len(list(decode_messages((await peer.pull("orders")).body))) == 4


async def test_pops_skip_expired_messages(broker: Broker, remoting: RemotingClient) -> None:
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 3)
    await commit(peer, 0, group="poppers")
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert [one.body for one in popped(await peer.pop("orders"))] == [b"body 2"]


async def test_acknowledgements_of_expired_messages_count(broker: Broker, remoting: RemotingClient) -> None:
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 4)
    in_flight = await peer.messages("orders", queue_id=0, count=3)
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert await min_offset(peer) == 3
    answers = [await peer.ack(in_flight[0]), await peer.change(in_flight[1], 60_000)]
    handle = in_flight[2].handle
    bits = bytes([1 << 2 - handle.start_offset])
    batch = BatchAck(
        "poppers",
        "orders",
        handle.retry_flag,
        handle.start_offset,
        0,
        handle.revive_queue_id,
        handle.pop_time,
        handle.invisible_time,
        bits,
    )
    answers.append(await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=encode_json(BatchAckBody("broker-a", [batch]))))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3
    assert await until(lambda: broker.offsets.query("poppers", "orders", 0)) == 3


async def test_nothing_waits_for_a_group_when_all_messages_have_expired(
    broker: Broker, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 3)
    await commit(peer, 1)
    wrong_clock.ahead_s += HOUR_S
    await set_attributes(peer, "+retention.ms=1800000")
    await clean(broker)
    assert await min_offset(peer) == 3
    notification = NotificationRequestHeader(consumer_group="consumers", topic="orders", queue_id=-1, poll_time=0)
    assert (await peer.ask(RequestCode.NOTIFICATION, notification)).ext_fields["hasMsg"] == "false"
    peek = PeekMessageRequestHeader(topic="orders", queue_id=-1, max_msg_nums=1, consumer_group="consumers")
    assert (await peer.ask(RequestCode.PEEK_MESSAGE, peek)).ext_fields["restNum"] == "0"
    header = QueryConsumeTimeSpanRequestHeader(topic="orders", group="consumers")
    response = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    span = decode_json(response.body, QueryConsumeTimeSpanBody).consume_time_span_set[0]
    assert (span.min_time_stamp, span.delay_time) == (-1, 0)


async def test_a_reset_to_an_expired_message_is_refused(peer: Peer, broker: Broker) -> None:
    await send(peer, 5)
    await commit(peer, 1)
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)

    async def reset(**target: int) -> RemotingCommand:
        header = ResetOffsetRequestHeader(topic="orders", group="consumers", is_force=True, **target)
        return await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    response = await reset(queue_id=0, offset=3, timestamp=-1)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "not in consume queue range [4-5]" in (response.remark or "")
    assert broker.offsets.query("consumers", "orders", 0) == 1
    # A reset by time goes to the oldest message that has not expired.
    assert (await reset(queue_id=-1, timestamp=0)).code == ResponseCode.SUCCESS
    assert broker.offsets.query("consumers", "orders", 0) == 4


async def test_a_topic_that_was_made_anew_begins_without_a_limit(peer: Peer, broker: Broker) -> None:
    await send(peer, 3)
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert await min_offset(peer) == 2
    response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="orders"))
    assert response.code == ResponseCode.SUCCESS
    await send(peer, 3)
    await clean(broker)
    assert await min_offset(peer) == 0


async def test_a_clock_set_back_shows_messages_again(peer: Peer, broker: Broker, wrong_clock: WrongClock) -> None:
    await send(peer, 3)
    await set_attributes(peer, "+retention.ms=1800000")
    for ahead_s, expected in ((HOUR_S, 3), (0, 0), (-HOUR_S, 0)):
        wrong_clock.ahead_s = ahead_s
        await clean(broker)
        assert await min_offset(peer) == expected


async def test_expired_messages_are_no_lag(peer: Peer, broker: Broker) -> None:
    await send(peer, 5)
    await beat(peer, "client")
    await commit(peer, 1)
    lag = ConsumerLag(broker.context, pop_queues=broker.pops.queues)
    assert [backlog.messages for backlog in lag.backlogs()] == [4]
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert [backlog.messages for backlog in lag.backlogs()] == [1]
    response = await peer.ask(
        RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="consumers", topic="orders")
    )
    stats = ConsumeStats.decode(response.body)
    first = stats.offset_table[queue("orders", 0)]
    assert (first.consumer_offset, first.min_offset, first.lag, stats.total_diff) == (1, 4, 1, 1)
    response = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader())
    assert b'"totalDiff":1,' in response.body


async def test_a_restarted_broker_hides_the_same_messages(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    for is_first in (True, False):
        broker = Broker(config(tmp_path))
        await broker.start()
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        if is_first:
            await set_attributes(peer, "+retention.ms=1800000")
            await send_then_wait_an_hour(peer, wrong_clock)
            await clean(broker)
        assert await min_offset(peer) == 3
        assert (await peer.pull("orders", 0)).code == ResponseCode.PULL_OFFSET_MOVED
        await broker.stop()


async def test_a_slave_hides_them_too(tmp_path: Path, wrong_clock: WrongClock) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        master = await replicas.peer()
        await set_attributes(master, "+retention.ms=1800000")
        await send_then_wait_an_hour(master, wrong_clock)
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        await clean(replicas.slave)
        assert await min_offset(await replicas.peer(1)) == 3
        assert replicas.master.store.queue("orders", 0).min_offset == 0


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes"])
@pytest.mark.parametrize("value", ["", "0", "-1", "1h", "9223372036854775808"])
async def test_invalid_values_are_refused(peer: Peer, broker: Broker, name: str, value: str) -> None:
    header = CreateTopicRequestHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        attributes=f"+{name}={value}",
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "must be a number from 1 to" in (response.remark or "")
    assert broker.topics.get("orders") is None


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "%RETRY%consumers",
    ],
)
def test_topics_of_the_broker_have_no_retention(topic: str) -> None:
    assert retention_limits(topic, {"retention.ms": "1", "retention.bytes": "1"}) is None


@pytest.mark.parametrize(
    ("attributes", "limits"),
    [
        ({}, None),
        ({"message.type": "FIFO"}, None),
        ({"retention.ms": "5"}, RetentionLimits(5, None)),
        ({"retention.ms": "5", "retention.bytes": "+7"}, RetentionLimits(5, 7)),
        # `topics.json` can contain values that no broker accepts in a request.
        ({"retention.ms": "1h", "retention.bytes": "-1"}, None),
    ],
)
def test_limits_of_a_topic(attributes: dict[str, str], limits: RetentionLimits | None) -> None:
    assert retention_limits("orders", attributes) == limits


async def test_a_queue_that_cannot_be_read_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: MessageStore, now_ms: int) -> bool:
        raise StoreError("queue 0 of orders is not readable")

    monkeypatch.setattr(MessageStore, "apply_topic_retention", broken)
    broker = Broker(config(tmp_path))
    await broker.start()
    try:
        assert "queue 0 of orders is not readable" in caplog.text
    finally:
        await broker.stop()
