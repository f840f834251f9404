"""Tests, without Spark, how a stream reader continues: the offsets and partitions that it returns to Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spark_support import committed_offsets, create_topic, send_numbers
from wait_until import wait_until

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import DataLost
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.progress import lag_of
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxRows
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
ALL = ReadAllAvailable()


def reader(cluster: EmbeddedCluster, topic: str, **more: str) -> RocketMQStreamReader:
    options = {"nameserver": cluster.name_server, "subscribe": topic, "retrytimeoutms": "3000"} | more
    return RocketMQStreamReader(ReadOptions.parse(options, streaming=True), pa.schema([("body", ARROW_TYPES["body"])]))


def from_checkpoint(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def numbers(stream: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions = stream.partitions(from_checkpoint(start), from_checkpoint(end))
    return sorted(int(n) for p in partitions for batch in stream.read(p) for n in batch.column("body").to_pylist())


def lag(stream: RocketMQStreamReader) -> dict[str, int]:
    """Returns the lag that the progress of the query has."""
    return lag_of({"latestOffset": stream.reportLatestOffset()})


def test_a_first_batch_that_failed_begins_where_it_began(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(1000))
    first = reader(cluster, topic)
    start = first.initialOffset()
    send_numbers(cluster, topic, range(1000, 1300))
    end = first.latestOffset(start, ALL)
    send_numbers(cluster, topic, range(1300, 1500))

    # Spark keeps the end of the failed batch but requests the start again. By then `latest` is later.
    restarted = reader(cluster, topic)
    assert numbers(restarted, restarted.initialOffset(), end) == list(range(1000, 1300))
    following = restarted.latestOffset(end, ALL)
    assert numbers(restarted, end, following) == list(range(1300, 1500))
    assert restarted.latestOffset(following, ALL) == following


@pytest.mark.parametrize("other", [{"minpartitions": "7"}, {"maxpartitions": "1"}, {"deduplicate": "true"}])
def test_a_micro_batch_that_is_run_again_has_its_partitions(
    cluster: EmbeddedCluster, new_topic: NewTopic, other: dict[str, str]
) -> None:
    """With exactlyOnce, partition and number identify a row, so a repeated batch needs the same partitions."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(1000))
    first = reader(cluster, topic, startingoffsets="earliest", minpartitions="9")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    planned = [partition.ranges for partition in first.partitions(start, end)]
    assert len(planned) >= 9
    first.stop()
    again = reader(cluster, topic, startingoffsets="earliest", **other)
    assert [p.ranges for p in again.partitions(from_checkpoint(start), from_checkpoint(end))] == planned
    send_numbers(cluster, topic, range(1000, 1400))
    following = again.latestOffset(from_checkpoint(end), ALL)
    assert len(again.partitions(end, following)) != len(planned)
    assert numbers(again, end, following) == list(range(1000, 1400))
    again.stop()


def test_new_queues_are_read_from_their_first_message(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    stream = reader(cluster, topic)
    start = stream.latestOffset(stream.initialOffset(), ALL)
    create_topic(cluster, topic, 3)
    send_numbers(cluster, topic, range(1200))
    seen: list[int] = []
    for _ in range(3):
        end = stream.latestOffset(start, ReadMaxRows(400))
        found = numbers(stream, start, end)
        assert len(found) == 400
        seen += found
        start = end
    assert sorted(seen) == list(range(1200))
    assert stream.latestOffset(start, ReadMaxRows(400)) == start


def test_a_small_queue_has_its_turn_also_after_restarts(cluster: EmbeddedCluster) -> None:
    topic = "skewed"
    create_topic(cluster, topic, 4, brokers=[0])
    for queue_id in range(3):
        for number in range(4):
            send_to(cluster, MessageQueue(topic, "broker-a", queue_id), number)
    send_to(cluster, MessageQueue(topic, "broker-a", 3), 99)
    stream = reader(cluster, topic, startingoffsets="earliest")
    start, found = stream.initialOffset(), list[int]()
    for _ in range(2):
        end = stream.latestOffset(start, ReadMaxRows(2))
        found += numbers(stream, start, end)
        stream.stop()
        stream, start = reader(cluster, topic), from_checkpoint(end)
    stream.stop()
    assert sorted(found) == [0, 0, 0, 99]


def test_a_micro_batch_waits_for_enough_messages(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    stream = reader(cluster, topic, startingoffsets="earliest", minoffsetspertrigger="50", maxoffsetspertrigger="60")
    limit = ReadMaxRows(60)
    start = stream.initialOffset()
    assert stream.latestOffset(start, limit) == start
    send_numbers(cluster, topic, range(10))
    # The first micro-batch is not delayed, as in Spark's Kafka source.
    first = stream.latestOffset(start, limit)
    assert numbers(stream, start, first) == list(range(10))
    assert lag(stream) == {topic: 0}
    send_numbers(cluster, topic, range(10, 59))
    assert stream.latestOffset(first, limit) == first
    assert lag(stream) == {topic: 49}
    send_numbers(cluster, topic, range(59, 100))
    second = stream.latestOffset(first, limit)
    assert len(numbers(stream, first, second)) == 60
    assert lag(stream) == {topic: 30}
    # 30 messages are left.
    assert stream.latestOffset(second, limit) == second
    assert lag(stream) == {topic: 30}
    stream.stop()


def test_a_micro_batch_waits_no_longer_than_the_trigger_delay(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    stream = reader(
        cluster, topic, startingoffsets="earliest", minoffsetspertrigger="1000000", maxtriggerdelay="300 ms"
    )
    send_numbers(cluster, topic, range(5))
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    triggered_at = time.monotonic()
    send_numbers(cluster, topic, range(5, 9))
    wait_until(lambda: stream.latestOffset(first, ALL) != first)
    assert time.monotonic() - triggered_at > 0.25
    stream.stop()


def test_available_now_waits_for_no_messages(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(10))
    stream = reader(cluster, topic, startingoffsets="earliest", minoffsetspertrigger="8", maxoffsetspertrigger="8")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(8))
    second = stream.latestOffset(first, ReadMaxRows(8))
    assert len(numbers(stream, first, second)) == 2
    assert stream.latestOffset(second, ReadMaxRows(8)) == second
    stream.stop()


def test_available_now_ends_at_what_was_there(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(100))
    stream = reader(cluster, topic, startingoffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    create_topic(cluster, topic, 2)
    send_numbers(cluster, topic, range(100, 500))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert numbers(stream, start, end) == list(range(100))
    assert stream.latestOffset(end, ALL) == end


def test_a_broker_that_is_away_holds_up_its_own_queues_only(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    stream = reader(cluster, topic, startingoffsets="earliest")
    start = from_checkpoint(stream.initialOffset())
    start[topic]["broker-z:0"] = 7
    send_numbers(cluster, topic, range(200))
    end = stream.latestOffset(start, ALL)
    assert end[topic]["broker-z:0"] == 7
    assert numbers(stream, start, end) == list(range(200))


def test_a_checkpoint_of_brokers_with_other_names(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    start = {topic: {"old-a:0": 7, "old-b:0": 9}}
    message = rf"^topic {topic} is on broker-a, broker-b; the position of the stream has its queues on old-a, old-b,"
    for limit in (False, True):
        stream = reader(cluster, topic)
        if limit:
            stream.prepareForTriggerAvailableNow()
        with pytest.raises(DataLost, match=message):
            stream.latestOffset(start, ALL)
        stream.stop()
    lenient = reader(cluster, topic, failondataloss="false")
    assert numbers(lenient, start, lenient.latestOffset(start, ALL)) == list(range(200))
    lenient.stop()


def test_a_restarted_stream_commits_what_its_checkpoint_says(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(400))
    stream = reader(cluster, topic, startingoffsets="earliest", consumergroup="resumed")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert numbers(stream, start, end) == list(range(400))
    stream.stop()
    # For a group without committed offsets, the broker returns 0 while a queue still has its first message.
    assert committed_offsets(cluster, "resumed", topic, 2) == [0] * 4
    restarted = reader(cluster, topic, consumergroup="resumed")
    assert restarted.latestOffset(from_checkpoint(end), ALL) == from_checkpoint(end)
    restarted.stop()
    assert sum(committed_offsets(cluster, "resumed", topic, 2)) == 400


def test_two_queries_of_one_group_read_everything_each(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """The displayed lag is that of the query that committed last. Queries do not read a group's offsets."""
    topic = new_topic(1)
    send_numbers(cluster, topic, range(400))
    fast, slow = (reader(cluster, topic, startingoffsets="earliest", consumergroup="shared") for _ in range(2))
    start = fast.initialOffset()
    assert slow.initialOffset() == start
    end = fast.latestOffset(start, ALL)
    first = slow.latestOffset(start, ReadMaxRows(100))
    assert numbers(fast, start, end) == list(range(400))
    found = numbers(slow, start, first)
    fast.commit(end)
    assert sum(committed_offsets(cluster, "shared", topic, 1)) == 400
    slow.commit(first)
    assert sum(committed_offsets(cluster, "shared", topic, 1)) == 100
    rest = slow.latestOffset(first, ALL)
    assert sorted(found + numbers(slow, first, rest)) == list(range(400))
    slow.commit(rest)
    assert sum(committed_offsets(cluster, "shared", topic, 1)) == 400
    # A new query does not use the committed offsets either.
    another = reader(cluster, topic, startingoffsets="earliest", consumergroup="shared")
    assert another.initialOffset() == start
    for stream in (fast, slow, another):
        stream.stop()


@pytest.mark.parametrize(
    "began", [False, True], ids=["the first version's", "since brokers and first messages are kept"]
)
def test_an_unfinished_micro_batch_of_an_earlier_version(
    cluster: EmbeddedCluster, new_topic: NewTopic, began: bool
) -> None:
    """The offsets are those that drivers of 73bce80 and 042a404 wrote to checkpoints. The last batch was unfinished."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(800))
    queues = [f"{broker}:{queue}" for broker in ("broker-a", "broker-b") for queue in (0, 1)]
    later: dict[str, Any] = {}
    if began:
        now = reader(cluster, topic, startingoffsets="earliest").initialOffset()
        later = {"$first": now["$first"], "$began": {"brokers": ["broker-a", "broker-b"], "since": None}}

    def place(offset: int, **more: Any) -> dict[str, Any]:
        return {topic: dict.fromkeys(queues, offset)} | more | later

    start = place(0)
    done = place(60, **{"$start": {topic: dict.fromkeys(queues, 0)}})
    # The last batch includes a queue that was added while the stream ran.
    planned = place(110)
    del done[topic]["broker-b:1"]
    planned["$start"] = {topic: {"broker-b:1": 0}}
    stream = reader(cluster, topic, startingoffsets="earliest")
    found = numbers(stream, start, done) + numbers(stream, done, planned)
    end = stream.latestOffset(planned, ALL)
    found += numbers(stream, planned, end)
    assert sorted(found) == list(range(800))
    assert stream.latestOffset(end, ALL) == end
    stream.stop()


def test_queues_that_a_topic_has_no_more_are_an_error_until_they_are_read(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "shrinks"
    create_topic(cluster, topic, 4, brokers=[0])
    stream = reader(cluster, topic, startingoffsets="earliest")
    start = stream.initialOffset()
    for n, queue_id in enumerate([0, 1, 2, 2, 3]):
        send_to(cluster, MessageQueue(topic, "broker-a", queue_id), n)
    # Queue 3 has been read to its end.
    start[topic]["broker-a:3"] = 1
    set_queues(cluster, topic, 2)
    with pytest.raises(DataLost, match=rf"^{topic} broker-a:2, at 0 of 2: .* readQueueNums"):
        stream.latestOffset(start, ALL)
    # `availableNow` makes a new request.
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match=rf"^{topic} broker-a:2, at 0 of 2: "):
        stream.latestOffset(start, ALL)
    stream.stop()

    lenient = reader(cluster, topic, startingoffsets="earliest", failondataloss="false")
    caplog.clear()
    end = lenient.latestOffset(start, ALL)
    assert numbers(lenient, start, end) == [0, 1]
    (said,) = [record.getMessage() for record in caplog.records if "broker-a:2" in record.getMessage()]
    assert "broker-a:3" not in said
    assert said.endswith("going on, as failOnDataLoss is false")
    lenient.stop()

    set_queues(cluster, topic, 4)
    again = reader(cluster, topic)
    assert numbers(again, end, again.latestOffset(end, ALL)) == [2, 3]
    again.stop()


def test_queues_that_were_read_to_their_end_may_go_without_a_word(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "shrinks-when-read"
    create_topic(cluster, topic, 4, brokers=[0])
    stream = reader(cluster, topic, startingoffsets="earliest")
    start = stream.initialOffset()
    for queue_id in range(4):
        send_to(cluster, MessageQueue(topic, "broker-a", queue_id), queue_id)
    end = stream.latestOffset(start, ALL)
    assert numbers(stream, start, end) == [0, 1, 2, 3]
    stream.stop()
    set_queues(cluster, topic, 2)
    caplog.clear()
    restarted = reader(cluster, topic)
    assert restarted.latestOffset(end, ALL) == end
    restarted.stop()
    assert not caplog.records


def test_a_broker_whose_queues_may_not_be_read_any_more(
    cluster: EmbeddedCluster, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    stream = reader(cluster, topic, startingoffsets="earliest")
    start = stream.initialOffset()
    set_queues(cluster, topic, 1, perm=PERM_WRITE)
    stream.latestOffset(start, ALL)
    stream.stop()
    said = "broker broker-a has no readable queue of its topic: 1 queues of this stream keep their position for now"
    assert said in caplog.messages


def send_to(cluster: EmbeddedCluster, queue: MessageQueue, number: int) -> None:
    async def send() -> None:
        async with Producer(cluster.name_server, "numbers") as producer:
            await producer.send(Message(queue.topic, b"%d" % number), queue=queue)

    asyncio.run(send())


def set_queues(cluster: EmbeddedCluster, topic: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> None:
    """Changes the queues on the first broker and returns when the NameServer has the new route."""
    config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    async def change() -> None:
        remoting = RemotingClient()
        await BrokerApi(remoting).create_topic(cluster.brokers[0], config)
        await remoting.close()

    async def is_known() -> bool:
        async with ClusterClient([cluster.name_server], 5000) as brokers:
            found = await brokers.read_queues(topic)
        return sum(queue.broker_name == "broker-a" for queue in found) == (queues if perm & PERM_READ else 0)

    asyncio.run(change())
    wait_until(lambda: run(is_known()))
