"""Prometheus metrics: names and labels as in RocketMQ 5, and values that follow the traffic."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from administration import commit, send
from bare_store import damage
from broker_support import Peer, config
from half_range_support import end_all, prepare_many
from pop_support import PopPeer, popped
from ports import free_port
from step_timer import loop_steps
from transaction_support import Producer
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP, ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC
from gantrymq.remoting.client import RemotingClient

NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
#: Labels of the snapshot of the timer wheel, in seconds.
BOUNDS = ("5", "60", "300", "900", "3600", "14400", "28800", "86400")
STORAGE = NODE | {"storage_type": "local", "storage_medium": "disk"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store", metrics_port=free_port()))
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


class Scrape:
    """The parsed samples of one scrape, as {(name, labels): value}."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name, kind = line.removeprefix("# TYPE ").split()
                assert name not in self.types
                self.types[name] = kind
            elif not line.startswith("#"):
                match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
                assert match, line
                labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                assert (match[1], labels) not in self.samples, line
                self.samples[match[1], labels] = float(match[3])

    def value(self, name: str, base: dict[str, str] = NODE, **labels: str) -> float:
        """Returns the sample with exactly these labels."""
        return self.samples[f"rocketmq_{name}", frozenset((base | labels).items())]


async def scrape(broker: Broker) -> Scrape:
    return Scrape(await page(broker))


async def page(broker: Broker) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.config.metrics_port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    assert answer.startswith("HTTP/1.0 200"), answer
    return answer.partition("\r\n\r\n")[2]


async def join(peer: Peer, group: str, topic: str = "orders", consume_type: str = "CONSUME_PASSIVELY") -> None:
    consumer = ConsumerData(group, consume_type, subscription_data_set=[SubscriptionData.parse(topic, "*")])
    data = HeartbeatData(f"client-{group}", [ProducerData("producers")], [consumer])
    assert (await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))).code == 0


def of_group(group: str = "consumers", topic: str = "orders", is_retry: str = "false") -> dict[str, str]:
    return {"consumer_group": group, "topic": topic, "is_retry": is_retry, "is_system": "false"}


async def test_disks(peer: PopPeer, broker: Broker) -> None:
    """The disk usage of the log's partition and of the other files."""
    figures = await scrape(broker)
    for files in ("commitLog", "consumeQueue"):
        told = figures.samples["gantry_disk_used_ratio", frozenset((NODE | {"files": files}).items())]
        assert 0 < told < 1
    assert figures.types["gantry_disk_used_ratio"] == "gauge"


async def test_a_page_of_many_groups_does_not_block_the_loop(peer: PopPeer, broker: Broker) -> None:
    broker.topics.put(TopicConfig("orders", 64, 64))
    for queue_id in range(64):
        await send(peer, 1, queue_id=queue_id)
    for number in range(200):
        await join(peer, f"group-{number}")
        for queue_id in range(64):
            broker.offsets.commit(f"group-{number}", "orders", queue_id, 0)
    async with loop_steps() as steps:
        text = await page(broker)
        longest_s = steps.longest
    figures = Scrape(text)
    lags = [figures.value("consumer_lag_messages", **of_group(f"group-{number}")) for number in range(200)]
    assert lags == [64] * 200
    # 0.1 s in one step.
    assert longest_s < 0.03


async def test_messages_in_and_out(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 3)
    await send(peer, 2, queue_id=1)
    for _ in range(2):
        assert len((await peer.pull("orders")).body)
    body = (await peer.pull("orders", queue_id=1, group="others")).body
    figures = await scrape(broker)
    kind = {"topic": "orders", "is_system": "false", "message_type": "normal"}
    assert figures.value("messages_in_total", **kind) == 5
    assert figures.value("throughput_in_total", **kind) == broker.store.max_physical_offset
    assert figures.value("messages_out_total", **of_group()) == 6
    assert figures.value("messages_out_total", **of_group("others")) == 2
    assert figures.value("throughput_out_total", **of_group("others")) == len(body)
    assert figures.types["rocketmq_messages_out_total"] == "counter"


async def test_messages_in_by_type(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 1)
    for properties in ({"__SHARDINGKEY": "one"}, {"X__SHARDINGKEY": "one"}, {"TIMER_DELAY_SEC": "3600"}):
        assert (await peer.send("orders", b"body", properties=properties)).code == 0
    await peer.send("%RETRY%consumers", b"retry")
    producer = await Producer().connect(broker.port)
    await producer.prepare("orders", b"half")
    figures = await scrape(broker)
    await producer.client.close()
    for topic, kind, count in (
        ("orders", "normal", 2),
        ("orders", "fifo", 1),
        ("rmq_sys_wheel_timer", "delay", 1),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "transaction", 1),
    ):
        labels = {"topic": topic, "message_type": kind, "is_system": str(topic != "orders").lower()}
        assert figures.value("messages_in_total", **labels) == count
        assert figures.value("message_size_count", **labels) == count
        assert figures.value("message_size_bucket", **labels, le="1024") == count
        assert figures.value("message_size_sum", **labels) == figures.value("throughput_in_total", **labels) > 0
    # Retry topics are not counted.
    assert len([name for name, _ in figures.samples if name == "rocketmq_messages_in_total"]) == 4


async def test_a_delivered_delay_is_a_message_of_its_topic(peer: PopPeer, broker: Broker) -> None:
    assert (await peer.send("orders", b"body", properties={"DELAY": "1"})).code == 0
    await peer.pull("orders", suspend_ms=8000)
    figures = await scrape(broker)
    for topic in ("orders", "SCHEDULE_TOPIC_XXXX"):
        labels = {"topic": topic, "message_type": "delay", "is_system": str(topic != "orders").lower()}
        assert figures.value("messages_in_total", **labels) == 1


async def test_dead_letters(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 1)
    [message] = decode_messages((await peer.pull("orders")).body)
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset, group="consumers", delay_level=-1, origin_topic="orders"
    )
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    await peer.send("%RETRY%consumers", b"x", reconsume_times=3, max_reconsume_times=2)
    figures = await scrape(broker)
    for topic in ("orders", "%RETRY%consumers"):
        labels = {"consumer_group": "consumers", "topic": topic, "is_system": "false"}
        assert figures.value("send_to_dlq_messages_total", **labels) == 1


def latency_of(figures: Scrape, request: str, response: str = "success", *, is_long_polling: bool = False) -> float:
    """Returns the number of requests with these labels."""
    labels = {"request_code": request, "response_code": response, "is_long_polling": str(is_long_polling).lower()}
    labels |= {"protocol_type": "remoting", "result": "success"}
    return figures.value("rpc_latency_milliseconds_count", **labels)


async def test_latencies_of_requests(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 2)
    waiting = asyncio.create_task(peer.pull("orders", 2, suspend_ms=5000))
    await until(lambda: len(broker.polling))
    # The pull waits for more than 20 ms.
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 0.02)
    await send(peer, 1)
    await waiting
    await peer.pull("orders", 0)
    await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": "none"})
    figures = await scrape(broker)
    assert latency_of(figures, "send_message_v2") == 3
    assert latency_of(figures, "pull_message") == 1
    assert latency_of(figures, "pull_message", is_long_polling=True) == 1
    assert latency_of(figures, "get_topic_stats_info", "topic_not_exist") == 1
    sums = {
        labels: v for (name, labels), v in figures.samples.items() if name == "rocketmq_rpc_latency_milliseconds_sum"
    }
    assert 20 < next(v for labels, v in sums.items() if ("is_long_polling", "true") in labels) < 10_000


async def test_waiting_pull_counts_when_it_is_answered(peer: PopPeer, broker: Broker) -> None:
    await send(peer, 1)
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=5000))
    await until(lambda: len(broker.polling))
    assert (await scrape(broker)).value("messages_out_total", **of_group()) == 0
    await send(peer, 1)
    await waiting
    assert (await scrape(broker)).value("messages_out_total", **of_group()) == 1


async def test_lag_of_a_group_that_pulls(peer: PopPeer, broker: Broker) -> None:
    await join(peer, "consumers")
    await send(peer, 4)
    await commit(peer, 0)
    group = of_group()
    figures = await scrape(broker)
    assert figures.value("consumer_lag_messages", **group) == figures.value("consumer_ready_messages", **group) == 4
    assert figures.value("consumer_inflight_messages", **group) == 0
    async with asyncio.timeout(5):
        for name in ("consumer_lag_latency_milliseconds", "consumer_queueing_latency_milliseconds"):
            while not 1 <= (await scrape(broker)).value(name, **group) < 10_000:
                pass

    await peer.pull("orders", max_msg_nums=3)
    await commit(peer, 1)
    figures = await scrape(broker)
    names = ("lag", "inflight", "ready")
    assert [figures.value(f"consumer_{name}_messages", **group) for name in names] == [3, 2, 1]

    await peer.pull("orders", 3)
    await commit(peer, 4)
    figures = await scrape(broker)
    assert [figures.value(f"consumer_{name}_messages", **group) for name in names] == [0, 0, 0]
    assert (
        figures.value("consumer_lag_latency_milliseconds", **group)
        == figures.value("consumer_queueing_latency_milliseconds", **group)
        == 0
    )


async def test_messages_that_a_filter_keeps_back_are_not_ready(peer: PopPeer, broker: Broker) -> None:
    await join(peer, "consumers")
    await send(peer, 4)
    await commit(peer, 0)
    await peer.pull("orders", subscription="tag")
    figures = await scrape(broker)
    assert figures.value("consumer_ready_messages", **of_group()) == 0
    assert figures.value("messages_out_total", **of_group()) == 0


async def test_a_pop_is_in_flight_until_it_is_acknowledged(peer: PopPeer, broker: Broker) -> None:
    await join(peer, "poppers", consume_type=CONSUME_POP)
    await send(peer, 3)
    messages = popped(await peer.pop("orders", count=2, init_mode=0))
    group = of_group("poppers")
    figures = await scrape(broker)
    names = ("lag", "inflight", "ready")
    assert [figures.value(f"consumer_{name}_messages", **group) for name in names] == [3, 2, 1]
    assert figures.value("messages_out_total", **group) == 2
    assert figures.value("pop_checkpoint_buffer_size") == figures.value("pop_offset_buffer_size") == 1
    assert figures.value("pop_revive_lag_milliseconds", queue_id="0") == 0
    retry = of_group("poppers", is_retry="true")
    assert figures.value("consumer_lag_messages", **retry) == 0

    for message in messages:
        await peer.ack(message)
    figures = await scrape(broker)
    assert [figures.value(f"consumer_{name}_messages", **group) for name in names] == [1, 0, 1]
    assert figures.value("pop_checkpoint_buffer_size") == figures.value("pop_offset_buffer_size") == 0


async def test_connections(peer: PopPeer, broker: Broker) -> None:
    await join(peer, "consumers")
    client = {"language": "python", "version": "v5_5_0", "protocol_type": "remoting"}
    figures = await scrape(broker)
    assert figures.value("producer_connections", **client) == 1
    labels = client | {"consumer_group": "consumers", "consume_mode": "push", "is_system": "false"}
    assert figures.value("consumer_connections", **labels) == 1


async def test_transactions(peer: PopPeer, broker: Broker) -> None:
    producer = await Producer().connect(broker.port)
    halves = [await producer.prepare("orders", b"x") for _ in range(4)]
    await producer.prepare("trades", b"x")
    figures = await scrape(broker)
    assert figures.value("half_messages", topic="orders") == 4
    assert figures.value("half_messages", topic="trades") == 1
    await producer.end(halves[0])
    await producer.end(halves[2], TRANSACTION_ROLLBACK)
    for _ in range(2):
        await producer.end(halves[3], TRANSACTION_ROLLBACK)
    figures = await scrape(broker)
    assert figures.value("half_messages", topic="orders") == 1
    assert figures.value("half_messages", topic="trades") == 1
    # Rollbacks are not in the latency, as in Java.
    assert figures.value("finish_message_latency_milliseconds_count", topic="orders") == 1
    assert figures.value("finish_message_latency_milliseconds_bucket", topic="orders", le="5") == 1
    assert figures.value("commit_messages_total", topic="orders") == 1
    assert figures.value("rollback_messages_total", topic="orders") == 2
    await producer.client.close()


async def test_ends_that_are_written_count_too(peer: PopPeer, broker: Broker) -> None:
    broker.config.transaction_op_msg_max_size = 1
    producer = await Producer().connect(broker.port)
    halves = [await producer.prepare("orders", b"x") for _ in range(3)]
    await producer.end(halves[1])
    assert (await scrape(broker)).value("half_messages", topic="orders") == 2
    await producer.client.close()


async def test_half_messages_of_a_batch_are_counted(peer: PopPeer, broker: Broker) -> None:
    producer = await Producer().connect(broker.port)
    committed = await prepare_many(producer, "orders", [b"x"] * 20)
    await prepare_many(producer, "orders", [b"x"] * 10)
    assert (await scrape(broker)).value("half_messages", topic="orders") == 30
    await end_all(producer, [committed])
    figures = await scrape(broker)
    assert figures.value("half_messages", topic="orders") == 10
    assert figures.value("finish_message_latency_milliseconds_count", topic="orders") == 20
    await producer.client.close()


async def test_open_half_messages_are_counted_after_a_restart(tmp_path: Path) -> None:
    settings = config(
        tmp_path / "store",
        metrics_port=free_port(),
        transaction_time_out=0,
        transaction_check_interval=50,
        transaction_check_max=10_000,
    )
    broker = Broker(settings)
    await broker.start()
    producer = await Producer().connect(broker.port)
    ended, *_ = [await producer.prepare(topic, b"x") for topic in ("orders", "orders", "orders", "trades")]
    await producer.end(ended)
    # Copies of the open half messages are no further half messages.
    await until(lambda: broker.store.queue(TRANSACTION_HALF_TOPIC, 0).max_offset >= 10)
    await producer.client.close()
    await broker.stop()
    broker = Broker(settings)
    await broker.start()
    try:

        async def counts() -> bool:
            found = {
                dict(labels)["topic"]: count
                for (name, labels), count in (await scrape(broker)).samples.items()
                if name == "rocketmq_half_messages"
            }
            return found == {"orders": 2, "trades": 1}

        await until(counts)
    finally:
        await broker.stop()


async def test_durations_of_creations(peer: PopPeer, broker: Broker) -> None:
    for perm in (6, 6, 99):
        header = CreateTopicRequestHeader(
            topic="created", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=perm
        )
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    for name in ("readers", "no name"):
        group = encode_json(SubscriptionGroupConfig(name))
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    figures = await scrape(broker)
    for status, count in {"success": 2, "failure": 1}.items():
        labels = {"invocation_status": status, "is_system": "false"}
        assert figures.value("topic_create_execution_time_milliseconds_count", **labels) == count
    for status in ("success", "failure"):
        name = "consumer_group_create_execution_time_milliseconds_count"
        assert figures.value(name, invocation_status=status) == 1


async def test_timer_messages(peer: PopPeer, broker: Broker) -> None:
    for _ in range(2):
        await peer.send("orders", b"later", properties={"TIMER_DELAY_SEC": "3600"})

    async def enqueued() -> Scrape | None:
        figures = await scrape(broker)
        return figures if figures.value("timer_dequeue_lag", STORAGE) >= 2 else None

    figures = await until(enqueued)
    assert figures.value("timing_messages", STORAGE, topic="orders") == 2
    assert figures.value("timer_enqueue_total", STORAGE, topic="orders") == 2
    assert figures.value("delay_message_latency_seconds_bucket", STORAGE, topic="orders", le="600") == 0
    assert figures.value("delay_message_latency_seconds_bucket", STORAGE, topic="orders", le="43200") == 2
    assert figures.value("timer_enqueue_lag", STORAGE) == 0
    assert figures.value("timer_enqueue_latency_milliseconds", STORAGE) == 0
    assert figures.value("timer_dequeue_latency_milliseconds", STORAGE) == 0

    async def counted() -> dict[str, float] | None:
        figures = await scrape(broker)
        waiting = {bound: figures.value("timer_message_snapshot", STORAGE, timer_bound_s=bound) for bound in BOUNDS}
        return waiting if any(waiting.values()) else None

    waiting = await until(counted)
    assert waiting.pop("3600") + waiting.pop("14400") == 2
    assert not any(waiting.values())


async def test_delivered_timer_messages(peer: PopPeer, broker: Broker) -> None:
    await peer.send("orders", b"soon", properties={"TIMER_DELAY_MS": "1000"})
    await peer.send("orders", b"later", properties={"TIMER_DELAY_SEC": "40"})
    await until(lambda: broker.store.queue("orders", 0).max_offset)
    figures = await scrape(broker)
    assert figures.value("timer_enqueue_total", STORAGE, topic="orders") == 2
    assert figures.value("timer_dequeue_total", STORAGE, topic="orders") == 1
    assert figures.value("timer_dequeue_lag", STORAGE) == 1

    async def is_counted() -> bool:
        return (await scrape(broker)).value("timer_message_snapshot", STORAGE, timer_bound_s="60") == 1

    await until(is_counted)


async def test_the_revive_log(peer: PopPeer, broker: Broker) -> None:
    """A pop that expires is written to the revive log, read from it and redelivered."""
    await send(peer, 2)
    [acknowledged] = await peer.messages("orders", count=1, invisible_ms=1000)
    await peer.ack(acknowledged)
    assert len(await peer.messages("orders", count=1, invisible_ms=1000)) == 1
    record = {"consumer_group": "poppers", "topic": "orders"}
    written = await scrape(broker)
    put = {kind: record | {"revive_message_type": kind, "put_status": "PUT_OK"} for kind in ("CK", "ACK")}
    assert written.value("pop_revive_in_message_total", **put["CK"]) == 2
    assert written.value("pop_revive_in_message_total", **put["ACK"]) == 1

    async def redelivered() -> Scrape | None:
        figures = await scrape(broker)
        key = "rocketmq_pop_revive_retry_messages_total", frozenset((NODE | record | {"put_status": "PUT_OK"}).items())
        return figures if key in figures.samples else None

    figures = await until(redelivered)
    assert figures.value("pop_revive_retry_messages_total", **record, put_status="PUT_OK") == 1
    read = [
        (dict(labels)["revive_message_type"], count)
        for (name, labels), count in figures.samples.items()
        if name == "rocketmq_pop_revive_out_message_total"
    ]
    assert sum(count for kind, count in read if kind == "CK") == 2
    assert sum(count for kind, count in read if kind == "ACK") == 1
    assert figures.value("pop_revive_latency_milliseconds", queue_id="0") == 0


async def test_counters_of_deleted_topics_are_removed(peer: PopPeer, broker: Broker) -> None:
    for topic in ("orders", "trades"):
        await send(peer, 1, topic=topic)
        await peer.send(topic, b"later", properties={"TIMER_DELAY_SEC": "3600"})
        [message] = await peer.messages(topic, count=1, invisible_ms=1000)
        await peer.ack(message)
    producer = await Producer().connect(broker.port)
    for topic in ("orders", "trades"):
        await producer.end(await producer.prepare(topic, b"x"))
        await producer.end(await producer.prepare(topic, b"x"), TRANSACTION_ROLLBACK)
    await producer.client.close()
    names = {
        "rocketmq_timer_enqueue_total",
        "rocketmq_commit_messages_total",
        "rocketmq_rollback_messages_total",
        "rocketmq_half_messages",
        "rocketmq_finish_message_latency_milliseconds_sum",
        "rocketmq_delay_message_latency_seconds_sum",
        "rocketmq_pop_revive_in_message_total",
    }

    async def counted(topic: str) -> set[str]:
        samples = (await scrape(broker)).samples
        return {name for name, labels in samples if name in names and ("topic", topic) in labels}

    async def all_counted() -> bool:
        return await counted("orders") == await counted("trades") == names

    await until(all_counted)
    enqueued = dict(broker.features.timer.totals())["enqueue"]
    response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="orders"))
    assert response.code == 0
    assert await counted("orders") == set()
    assert await counted("trades") == names
    # The rates of all topics together are computed from this total.
    assert dict(broker.features.timer.totals())["enqueue"] >= enqueued


async def test_damage_is_counted(peer: PopPeer, broker: Broker) -> None:
    await peer.send("orders", b"later", properties={"DELAY": "1"})
    await peer.send("orders", b"later", properties={"TIMER_DELAY_MS": "1000"})
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        unit = broker.store.queue(topic, 0).unit(0)
        assert unit is not None
        damage(broker.store, unit[0])
    await until(lambda: broker.features.schedule.skipped and broker.features.timer.skipped)
    figures = await scrape(broker)
    for name, count in {"delay levels": 1, "timer": 1, "pop": 0, "transactions": 0}.items():
        assert figures.samples["gantry_skipped_messages_total", frozenset((NODE | {"by": name}).items())] == count


async def test_store_and_broker(peer: PopPeer, broker: Broker) -> None:
    figures = await scrape(broker)
    assert figures.value("storage_message_reserve_time_milliseconds", STORAGE) == 0
    began = time.monotonic()
    await send(peer, 1)
    figures = await scrape(broker)
    log_bytes = figures.samples["gantry_commit_log_bytes", frozenset(NODE.items())]
    assert log_bytes == broker.store.max_physical_offset > 0
    # The partition also has other files.
    assert figures.value("storage_size_bytes", STORAGE) > log_bytes
    assert 0 <= figures.value("storage_flush_behind_bytes", STORAGE) <= broker.store.max_physical_offset
    assert 0 <= figures.value("storage_dispatch_behind_bytes", STORAGE) <= broker.store.max_physical_offset
    assert (
        0
        <= figures.value("storage_message_reserve_time_milliseconds", STORAGE)
        <= (time.monotonic() - began) * 1000 + 2
    )
    assert figures.value("broker_permission") == 6
    assert figures.value("topic_number") == len(broker.topics.table.topic_config_table)
    assert figures.value("consumer_group_number") >= 0
