"""The statistics of VIEW_BROKER_STATS_DATA: each kind with Java's key and unit."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest
from administration import create_group
from broker_support import config
from pop_support import PopPeer
from wait_until import until

from gantrymq.broker.admin.stats_table import StatsTable
from gantrymq.broker.admin.stored_sizes import StoredSizes
from gantrymq.broker.append.put_times import PERIOD_S, PutTimes
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables import BrokerStats
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.group import DeleteSubscriptionGroupRequestHeader
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.remoting.client import RemotingClient

CLUSTER = "DefaultCluster"


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


async def data(peer: PopPeer, kind: str, key: str) -> BrokerStatsData | None:
    header = ViewBrokerStatsDataRequestHeader(stats_name=kind, stats_key=key)
    response = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    if response.code == ResponseCode.SYSTEM_ERROR:
        assert response.remark == f"The stats <{kind}> <{key}> not exist"
        return None
    return decode_json(response.body, BrokerStatsData)


def counted(peer: PopPeer, kind: str, key: str, total: int) -> Callable[[], Awaitable[BrokerStatsItem | None]]:
    """Returns a function that returns the last minute of a key when it has this sum."""

    async def item() -> BrokerStatsItem | None:
        found = await data(peer, kind, key)
        return found.stats_minute if found is not None and found.stats_minute.sum == total else None

    return item


async def test_every_kind(peer: PopPeer, broker: Broker) -> None:
    start = broker.store.max_physical_offset
    for body in (b"1", b"22", b"333"):
        await peer.send("orders", body)
    orders_size = broker.store.max_physical_offset - start
    for _ in range(4):
        await peer.send("trades", b"x")
    await peer.send("orders", b"late", properties={"DELAY": "18"})
    await create_group(peer, "poppers")
    pulled = list(decode_messages((await peer.pull("orders", 0)).body))
    back = ConsumerSendMsgBackRequestHeader(
        offset=pulled[0].commit_log_offset, group="consumers", delay_level=18, origin_topic="ignored"
    )
    dead = ConsumerSendMsgBackRequestHeader(offset=pulled[1].commit_log_offset, group="consumers", delay_level=-1)
    for header in (back, dead):
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
    first, second, third, _ = await peer.messages("trades", group="poppers", queue_id=0)
    assert (await peer.ack(first)).code == ResponseCode.SUCCESS
    assert (await peer.ack(second)).code == ResponseCode.SUCCESS
    assert (await peer.change(third, 30_000)).code == ResponseCode.SUCCESS

    sums = {
        ("TOPIC_PUT_NUMS", "orders"): 3,
        ("TOPIC_PUT_SIZE", "orders"): orders_size,
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"): 2,
        # The third number is the message in the dead-letter topic, which is no system topic.
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER): 3 + 4 + 1,
        ("GROUP_GET_NUMS", "orders@consumers"): 3,
        ("GROUP_GET_SIZE", "orders@consumers"): orders_size,
        ("BROKER_GET_NUMS", CLUSTER): 3 + 4,
        ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER): 3 + 4,
        ("SNDBCK_PUT_NUMS", "orders@consumers"): 2,
        ("SNDBCK2DLQ_TIMES", "null@orders@consumers@SEND_BACK_TO_DLQ"): 1,
        ("GROUP_ACK_NUMS", "trades@poppers"): 3,
        ("BROKER_ACK_NUMS", CLUSTER): 3,
        ("GROUP_CK_NUMS", "trades@poppers"): 2,
        ("BROKER_CK_NUMS", CLUSTER): 2,
    }
    items = {}
    for (kind, key), total in sums.items():
        try:
            items[kind] = await until(counted(peer, kind, key, total), 5.0)
        except AssertionError:
            raise AssertionError(f"{kind} of {key} is {await data(peer, kind, key)}, expected {total}") from None
    assert (await data(peer, "GROUP_GET_LATENCY", "orders@consumers")) is not None
    averages = {kind: item.avgpt for kind, item in items.items()}
    assert averages["TOPIC_PUT_SIZE"] == orders_size / 3
    assert averages["GROUP_GET_NUMS"] == 3
    assert averages["GROUP_GET_SIZE"] == orders_size
    all_puts = await data(peer, "BROKER_PUT_NUMS", CLUSTER)
    # Two delayed messages, and the records of the pops.
    assert all_puts is not None
    assert all_puts.stats_minute.sum >= 3 + 4 + 1 + 2
    assert all_puts.stats_minute.avgpt == 0
    assert all(item.tps > 0 for item in items.values())


async def test_kinds_that_do_not_exist(peer: PopPeer) -> None:
    await peer.send("orders", b"x")
    await until(counted(peer, "TOPIC_PUT_NUMS", "orders", 1))
    for kind, key in (
        ("TOPIC_PUT_SIZE", "none"),
        ("GROUP_GET_TIMES", "orders@consumers"),
        ("QUEUE_PUT_NUMS", "orders@0"),
        ("BROKER_PUT_NUMS", "OtherCluster"),
    ):
        assert await data(peer, kind, key) is None


async def test_acknowledgements_of_unknown_groups_are_not_counted(peer: PopPeer) -> None:
    await peer.send("trades", b"x")
    await create_group(peer, "poppers")
    [one] = await peer.messages("trades", queue_id=0)
    await peer.ack(one, group="invented")
    await peer.ack(one)
    await until(counted(peer, "GROUP_ACK_NUMS", "trades@poppers", 1))
    assert await data(peer, "GROUP_ACK_NUMS", "trades@invented") is None


async def test_orderly_pops_have_no_checkpoints(peer: PopPeer) -> None:
    await peer.send("trades", b"x")
    await create_group(peer, "poppers")
    assert await peer.messages("trades", order=True)
    await until(counted(peer, "GROUP_GET_NUMS", "trades@poppers", 1))
    assert await data(peer, "GROUP_CK_NUMS", "trades@poppers") is None


async def test_a_property_that_names_no_topic_is_no_key(peer: PopPeer) -> None:
    for origin in ("invented", "trades"):
        await peer.send("orders", b"x", properties={"RETRY_TOPIC": origin})
    await peer.send("trades", b"x")
    for message in decode_messages((await peer.pull("orders", 0)).body):
        header = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=-1)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
    for topic in ("orders", "trades"):
        await until(counted(peer, "SNDBCK_PUT_NUMS", f"{topic}@consumers", 1))
        await until(counted(peer, "SNDBCK2DLQ_TIMES", f"null@{topic}@consumers@SEND_BACK_TO_DLQ", 1))
    assert await data(peer, "SNDBCK_PUT_NUMS", "invented@consumers") is None
    assert await data(peer, "SNDBCK2DLQ_TIMES", "null@invented@consumers@SEND_BACK_TO_DLQ") is None


@pytest.fixture
async def restarted(tmp_path: Path, remoting: RemotingClient) -> AsyncIterator[PopPeer]:
    """Yields a peer of a broker that was restarted with two messages in its store."""
    first = Broker(config(tmp_path / "restarted"))
    await first.start()
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{first.port}"))
    for _ in range(2):
        await peer.send("orders", b"before")
    await first.stop()
    second = Broker(config(tmp_path / "restarted"))
    await second.start()
    yield PopPeer(await remoting.connection(f"127.0.0.1:{second.port}"))
    await second.stop()


async def test_messages_before_the_start_do_not_count(restarted: PopPeer) -> None:
    await restarted.send("orders", b"after")
    await until(counted(restarted, "TOPIC_PUT_NUMS", "orders", 1))
    found = await data(restarted, "TOPIC_PUT_SIZE", "orders")
    assert found is not None
    [message] = decode_messages((await restarted.pull("orders", 2)).body)
    assert found.stats_minute.sum == message.store_size


def test_put_times_of_the_last_period() -> None:
    times = PutTimes(0.0)
    times.add(0.0001, 990)
    times.add(0.015, 8)
    times.add(0.3)
    times.add(12.0)
    assert times.percentile(0.99) == 0.0
    times.sample(PERIOD_S)
    assert times.longest_ms == 12_000
    assert times.distribution() == (
        "[<=0ms]:990 [0~10ms]:0 [10~50ms]:8 [50~100ms]:0 [100~200ms]:0 [200~500ms]:1 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    assert times.percentile(0.5) == pytest.approx(500 / 990)
    assert times.percentile(0.99) == 1.0
    assert times.percentile(0.999) == 300.0
    assert times.percentile(1.0) == 12_000
    times.sample(PERIOD_S + 1)
    assert times.percentile(1.0) == 12_000
    times.sample(2 * PERIOD_S + 1)
    assert times.percentile(1.0) == 0.0


async def test_a_batch_is_one_append(peer: PopPeer, broker: Broker) -> None:
    body = encode_batch([(0, b"x", b"")] * 20)
    assert (await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE)).code == ResponseCode.SUCCESS
    times = broker.appender.put_times
    times.sample(monotonic() + PERIOD_S)
    assert sum(map(int, re.findall(r":(\d+) ", times.distribution()))) == 1


async def test_a_kind_without_new_events_leaves_the_time_spans(broker: Broker) -> None:
    stats = BrokerStats()
    table = StatsTable(stats, StoredSizes(broker.store, 0), CLUSTER, 0.0)

    def sample(now: float) -> None:
        for _ in table.sample([], now):
            pass

    sample(990.0)
    stats.sent_back("orders", "consumers")
    sample(1000.0)
    found = table.data("SNDBCK_PUT_NUMS", "orders@consumers", 1000.0)
    assert found is not None
    assert (found.stats_minute.sum, found.stats_minute.tps) == (1, 0.1)
    for now in range(1010, 1100, 10):
        sample(float(now))
    found = table.data("SNDBCK_PUT_NUMS", "orders@consumers", 1090.0)
    assert found is not None
    assert (found.stats_minute.sum, found.stats_hour.sum) == (0, 1)


async def test_a_large_sample_is_taken_in_time_slices(peer: PopPeer, broker: Broker) -> None:
    groups = [f"group-{n}" for n in range(5000)]
    for group in groups:
        broker.context.stats.sent_back("orders", group)
    assert broker.runtime.sample() == 0.0
    for group in (groups[0], groups[-1]):
        await until(counted(peer, "SNDBCK_PUT_NUMS", f"orders@{group}", 1))


async def test_the_sizes_of_few_queues_are_added_up_in_one_step(broker: Broker, peer: PopPeer) -> None:
    topics = [f"topic-{n}" for n in range(100)]
    for topic in topics:
        await peer.send(topic, b"x")
    sizes = StoredSizes(broker.store, 0)
    sizes.add(topics)
    parts = []
    while sizes.is_behind:
        parts.append(sizes.take())
    assert [len(part) for part in parts] == [20] * 5
    assert set().union(*parts) == set(topics)


async def delete(peer: PopPeer, *, topic: str | None = None, group: str | None = None) -> None:
    if topic is not None:
        response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic))
    else:
        response = await peer.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader(group_name=group or "")
        )
    assert response.code == ResponseCode.SUCCESS


async def test_statistics_of_deleted_topics_and_groups(peer: PopPeer, broker: Broker) -> None:
    stats = broker.context.stats
    for topic in ("orders", "trades"):
        await peer.send(topic, b"x")
        for group in ("consumers", "others"):
            stats.sent_back(topic, group)
            stats.sent_to_dlq(topic, group)
    kinds = {
        "TOPIC_PUT_NUMS": "{topic}",
        "TOPIC_PUT_SIZE": "{topic}",
        "SNDBCK_PUT_NUMS": "{topic}@{group}",
        "SNDBCK2DLQ_TIMES": "null@{topic}@{group}@SEND_BACK_TO_DLQ",
    }

    async def known(topic: str, group: str) -> list[str]:
        return [
            kind
            for kind, key in kinds.items()
            if await data(peer, kind, key.format(topic=topic, group=group)) is not None
        ]

    async def all_known() -> bool:
        return await known("orders", "consumers") == list(kinds)

    await until(all_known)
    # Not in a sample yet.
    stats.sent_back("orders", "late")
    await delete(peer, topic="orders")
    assert await known("orders", "consumers") == []
    assert await known("trades", "consumers") == list(kinds)
    await delete(peer, group="consumers")
    assert await known("trades", "consumers") == ["TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"]
    assert await known("trades", "others") == list(kinds)
    put = await data(peer, "BROKER_PUT_NUMS", CLUSTER)
    assert put is not None
    assert put.stats_minute.sum == 2

    await peer.send("orders", b"x")
    await until(counted(peer, "TOPIC_PUT_NUMS", "orders", 1))
    assert await data(peer, "SNDBCK_PUT_NUMS", "orders@late") is None
