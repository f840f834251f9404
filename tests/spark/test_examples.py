"""Tests each file of examples/pipelines with messages whose result is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from example_support import EXAMPLES, example, messages, send, send_json
from pyspark.sql import SparkSession
from spark_support import WAIT_S, create_topic, send_numbers
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.trace import TraceBean, TraceContext, TraceType, trace_messages
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]

pytestmark = pytest.mark.spark


def test_every_example_is_tested() -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    for path in EXAMPLES.glob("*.py"):
        # Examples for a lake run as programs.
        assert f'example("{path.stem}")' in sources or f'"pipelines" / "{path.name}"' in sources, path


@pytest.mark.slow
def test_lake_ingest(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    lake, topic = example("lake_ingest"), new_topic(2)
    out = str(tmp_path / "table")
    for numbers in (range(300), range(300, 500)):
        send_numbers(cluster, topic, numbers)
        query = lake.start(lake.read(spark, cluster.name_server, topic), out, str(tmp_path / "checkpoint"), once=True)
        assert query.awaitTermination(WAIT_S)
    table = spark.read.parquet(out)
    assert sorted(int(row.body) for row in table.select("body").collect()) == list(range(500))
    days = {str(row.day) for row in table.select("day").distinct().collect()}
    assert days == {path.name.removeprefix("day=") for path in (tmp_path / "table").glob("day=*")}


def test_dead_letters(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    dead_letters = example("dead_letters")
    topic, group = new_topic(1), "billing"
    create_topic(cluster, f"%DLQ%{group}", 1)
    send(
        cluster,
        [
            Message(
                f"%DLQ%{group}",
                b"bill %d" % n,
                keys=f"bill-{n % 5}",
                tags="due",
                properties={"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "x", "colour": "red"},
            )
            for n in range(10)
        ],
    )
    dead = dead_letters.read(spark, cluster.name_server, group).cache()
    (row,) = dead_letters.summary(dead).collect()
    assert (row.fromTopic, row.messages, row["keys"], row.example[:5]) == (topic, 10, 5, "bill ")
    dead_letters.resend(dead, cluster.name_server)
    dead.unpersist()
    again = messages(spark, cluster, topic).collect()
    assert sorted(bytes(row.body) for row in again) == [b"bill %d" % n for n in range(10)]
    assert {(row["keys"][:5], row.tags, row.properties["colour"]) for row in again} == {("bill-", "due", "red")}
    assert not any("RETRY_TOPIC" in row.properties for row in again)


def test_trace_latency(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """Traces of 100 messages: number n waits 10n ms and is processed in 5 ms. The last one fails at first."""
    trace_latency, topic = example("trace_latency"), new_topic(2)
    sent_at = 1_767_268_800_000
    contexts = []
    for n in range(1, 101):
        bean = TraceBean("orders", f"ID{n}", store_host="10.0.0.1:10911")
        contexts.append(TraceContext(TraceType.PUB, "shop", [bean], timestamp=sent_at, cost_time_ms=2))
        attempts = [(10 * n, True)] if n < 100 else [(1, False), (10 * n, True)]
        for attempt, (waiting, success) in enumerate(attempts):
            consumed = {"timestamp": sent_at + waiting, "request_id": f"R{n}-{attempt}", "success": success}
            contexts.append(TraceContext(TraceType.SUB_BEFORE, "billing", [bean], **consumed))
            contexts.append(TraceContext(TraceType.SUB_AFTER, "billing", [bean], cost_time_ms=5, **consumed))
    send(cluster, trace_messages(contexts, topic))
    lines = trace_latency.read(spark, cluster.name_server, topic)
    (row,) = trace_latency.summary(trace_latency.latencies(lines)).collect()
    assert (row["topic"], row["group"], row.messages, row.failed) == ("orders", "billing", 100, 0)
    assert row.waiting_p50_ms == 505
    assert row.waiting_p99_ms == pytest.approx(990.1)
    assert row.end_to_end_p50_ms == 510
    assert row.end_to_end_p99_ms == pytest.approx(995.1)


def test_trace_latency_of_a_cluster(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """The traces are those that clients write."""
    trace_latency, topic, traces = example("trace_latency"), new_topic(2), new_topic(1)
    waited_s = 0.1

    async def run() -> None:
        consumed: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            await asyncio.sleep(waited_s)
            consumed.append(message.body)

        producer = Producer(cluster.name_server, "traced", enable_trace=True, trace_topic=traces)
        consumer = PushConsumer(cluster.name_server, "tracing", handle, enable_trace=True, trace_topic=traces)
        consumer.subscribe(topic)
        async with producer, consumer:
            await consumer.wait_assigned()
            for n in range(10):
                await producer.send(Message(topic, b"%d" % n))
            await until(lambda: len(consumed) == 10)

    asyncio.run(run())
    lines = trace_latency.read(spark, cluster.name_server, traces)
    (row,) = trace_latency.summary(trace_latency.latencies(lines)).collect()
    assert (row["topic"], row["group"], row.messages, row.failed) == (topic, "tracing", 10, 0)
    assert row.end_to_end_p50_ms >= row.waiting_p50_ms + 1000 * waited_s - 1


def test_enrichment_join(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    join = example("enrichment_join")
    orders, payments, result = new_topic(1), new_topic(1), new_topic(1)
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(minutes: int) -> str:
        return (start + timedelta(minutes=minutes)).isoformat()

    send_json(cluster, orders, *({"order_id": f"o{n}", "customer": f"c{n % 3}", "time": at(n)} for n in range(20)))
    # Payment 5 is late, payment 6 is missing, and one payment has no order.
    paid = [n for n in range(20) if n not in (5, 6)]
    send_json(cluster, payments, *({"order_id": f"o{n}", "cents": n, "time": at(n + 30)} for n in paid))
    send_json(cluster, payments, {"order_id": "o5", "cents": 5, "time": at(5 + 61)})
    send_json(cluster, payments, {"order_id": "stranger", "cents": 1, "time": at(1)})
    send(cluster, [Message(payments, b"no payment")])
    query = join.start(
        join.join(
            join.read(spark, cluster.name_server, orders, join.ORDER),
            join.read(spark, cluster.name_server, payments, join.PAYMENT),
        ),
        cluster.name_server,
        result,
        str(tmp_path),
        once=True,
    )
    assert query.awaitTermination(WAIT_S)
    rows = [json.loads(bytes(row.body)) for row in messages(spark, cluster, result).collect()]
    assert sorted((row["order_id"], row["customer"], row["cents"]) for row in rows) == sorted(
        (f"o{n}", f"c{n % 3}", n) for n in paid
    )
