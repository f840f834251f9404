"""Tests that a topic with a thousand queues is planned with limited parallel requests and read completely."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from killable_cluster import Killable
from mortal_cluster import MortalCluster

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.concurrent_requests import MAX_IN_FLIGHT, request_each
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable

QUEUES = 500
#: Each of two brokers has QUEUES queues of this topic.
TOPIC = "wide"
MESSAGES = 3
#: Time limit for 2,000 to 4,000 requests on a busy machine, in seconds.
PLAN_S = 30.0
COLUMNS = pa.schema([(name, ARROW_TYPES[name]) for name in ("brokerName", "queueId", "body")])
T = TypeVar("T")


class Busiest:
    """Counts the largest number of parallel requests to each server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        self.requests = 0
        self._now: Counter[str] = Counter()
        asked = RemotingClient.invoke

        async def invoke(client: RemotingClient, address: str, *arguments: Any) -> Any:
            self.requests += 1
            self._now[address] += 1
            self.most[address] = max(self.most[address], self._now[address])
            try:
                return await asked(client, address, *arguments)
            finally:
                self._now[address] -= 1

        monkeypatch.setattr(RemotingClient, "invoke", invoke)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalCluster]:
    with MortalCluster(tmp_path_factory.mktemp("wide")) as running:
        running.create_topic(TOPIC, QUEUES)

        async def send() -> None:
            async with Producer(running.name_server, "wide") as producer:
                route = [MessageQueue(TOPIC, name, n) for name in ("broker-a", "broker-b") for n in range(QUEUES)]

                async def fill(queue: MessageQueue) -> None:
                    for number in range(MESSAGES):
                        body = f"{queue.broker_name}:{queue.queue_id}:{number}"
                        await producer.send(Message(TOPIC, body.encode()), queue=queue)

                await request_each(route, fill)

        asyncio.run(send())
        yield running


def everything() -> list[str]:
    return sorted(f"{b}:{q}:{n}" for b in ("broker-a", "broker-b") for q in range(QUEUES) for n in range(MESSAGES))


def options_for(cluster: MortalCluster, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": cluster.name_server, "subscribe": TOPIC, "retrytimeoutms": "5000"} | more)


def ask(options: ReadOptions, question: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
    async def answer() -> T:
        async with ClusterClient(options.name_servers, options.retry_timeout_ms) as cluster:
            return await question(cluster)

    return run(answer())


def bodies(partitions: list[list[Any]], options: ReadOptions) -> list[str]:
    rows = [row for ranges in partitions for b in read_ranges(ranges, options, COLUMNS) for row in b.to_pylist()]
    for row in rows:
        assert row["body"].decode().startswith(f"{row['brokerName']}:{row['queueId']}:")
    return sorted(row["body"].decode() for row in rows)


def test_a_batch_read(cluster: MortalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    busiest = Busiest(monkeypatch)
    options = options_for(cluster, startingtimestamp="1000")
    began = time.monotonic()
    partitions = ask(options, lambda brokers: plan_batch(brokers, options, PushedFilters()))
    took_s = time.monotonic() - began
    print(f"{2 * QUEUES} queues planned in {took_s:.2f} s with {busiest.requests} requests, {busiest.most}")
    assert took_s < PLAN_S
    assert max(busiest.most.values()) <= MAX_IN_FLIGHT
    # The requests ran in parallel.
    assert max(busiest.most.values()) > MAX_IN_FLIGHT / 2
    assert bodies(partitions, options) == everything()


def test_a_stream(cluster: MortalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    busiest = Busiest(monkeypatch)
    options = options_for(cluster, startingoffsets="earliest", consumergroup="wide")
    stream = RocketMQStreamReader(options, COLUMNS)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    stream.commit(end)
    again = stream.latestOffset(end, ReadAllAvailable())
    assert max(busiest.most.values()) <= MAX_IN_FLIGHT
    assert again == end
    # Without new messages, a poll requests the route, its static queues, and each broker once; more every ten seconds.
    polls = []
    for _ in range(3):
        before = busiest.requests
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        polls.append(busiest.requests - before)
    assert min(polls) <= 4, polls
    assert bodies([p.ranges for p in stream.partitions(start, end)], options) == everything()
    stream.stop()


def test_a_sample_of_each_queue_is_no_flood(cluster: MortalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    busiest = Busiest(monkeypatch)
    options = options_for(cluster, startingoffsets="earliest", maxbytespertrigger="20000")
    stream = RocketMQStreamReader(options, COLUMNS)
    start = stream.initialOffset()
    place, found = start, []
    while (end := stream.latestOffset(place, stream.getDefaultReadLimit())) != place:
        found += bodies([p.ranges for p in stream.partitions(place, end)], options)
        place = end
    assert sorted(found) == everything()
    assert max(busiest.most.values()) <= MAX_IN_FLIGHT
    stream.stop()


def test_a_broker_that_hangs_holds_a_stream_up_once(tmp_path: Path) -> None:
    """The broker delays the stream once, not once for every MAX_IN_FLIGHT of its queues."""
    with Killable(tmp_path, brokers=2) as brokers:
        options = ReadOptions.parse(
            {"nameserver": brokers.namesrv_addr, "subscribe": TOPIC, "startingoffsets": "latest"}
        )

        async def fill() -> None:
            async with AdminClient(brokers.namesrv_addr) as admin:
                await admin.ensure_topic(TOPIC, queues=QUEUES)

        asyncio.run(fill())
        stream = RocketMQStreamReader(options, COLUMNS)
        start = stream.initialOffset()
        assert len(start[TOPIC]) == 2 * QUEUES

        async def send() -> None:
            async with Producer(brokers.namesrv_addr, "wide") as producer:
                await producer.send(Message(TOPIC, b"1"), queue=MessageQueue(TOPIC, "broker-a", 7))

        asyncio.run(send())
        os.kill(brokers.brokers[1].pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            end = stream.latestOffset(start, ReadAllAvailable())
            took_s = time.monotonic() - began
        finally:
            os.kill(brokers.brokers[1].pid, signal.SIGCONT)
        assert {queue for queue, offset in end[TOPIC].items() if offset != start[TOPIC][queue]} == {"broker-a:7"}
        # The timeout of a request is 3 s.
        assert took_s < 2.5 * 3
        stream.stop()


def test_a_failure_ends_the_other_questions() -> None:
    asked = []

    async def question(topic: str) -> str:
        asked.append(topic)
        if topic == "3":
            raise ValueError(topic)
        await asyncio.Event().wait()
        return topic

    async def fail() -> set[asyncio.Task[Any]]:
        with pytest.raises(ValueError, match="3"):
            await request_each(map(str, range(1000)), question)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(fail()) == set()
    assert len(asked) <= MAX_IN_FLIGHT + 1


def test_answers_are_in_order() -> None:
    async def question(queue: MessageQueue) -> int:
        for _ in range(queue.queue_id % 7):
            await asyncio.sleep(0)
        return queue.queue_id

    queues = [MessageQueue("t", f"broker-{n % 3}", n) for n in range(1000)]
    assert asyncio.run(request_each(queues, question)) == list(range(1000))  # type: ignore[arg-type]
