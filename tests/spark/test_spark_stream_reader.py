"""How a stream goes on, without Spark: what it answers when it is asked for offsets and partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spark_support import committed_offsets, create_topic, send_numbers

from gantrymq.spark.arrow_records import ARROW_TYPES
from gantrymq.spark.options import ReadOptions
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


def test_a_first_batch_that_failed_begins_where_it_began(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(1000))
    first = reader(cluster, topic)
    start = first.initialOffset()
    send_numbers(cluster, topic, range(1000, 1300))
    end = first.latestOffset(start, ALL)
    send_numbers(cluster, topic, range(1300, 1500))

    # Spark remembers the end of the failed batch but asks anew for the first offsets, and `latest` has moved.
    restarted = reader(cluster, topic)
    assert numbers(restarted, restarted.initialOffset(), end) == list(range(1000, 1300))
    following = restarted.latestOffset(end, ALL)
    assert numbers(restarted, end, following) == list(range(1300, 1500))
    assert restarted.latestOffset(following, ALL) == following


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


def test_a_restarted_stream_commits_what_its_checkpoint_says(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(400))
    stream = reader(cluster, topic, startingoffsets="earliest", consumergroup="resumed")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert numbers(stream, start, end) == list(range(400))
    stream.stop()
    # For a group that has committed nothing the broker says 0 while a queue has its first message.
    assert committed_offsets(cluster, "resumed", topic, 2) == [0] * 4
    restarted = reader(cluster, topic, consumergroup="resumed")
    assert restarted.latestOffset(from_checkpoint(end), ALL) == from_checkpoint(end)
    restarted.stop()
    assert sum(committed_offsets(cluster, "resumed", topic, 2)) == 400


def test_two_queries_of_one_group_read_everything_each(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """The lag that is shown is of the one that has committed last: a group is no place."""
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
    # Neither is a new query led by it.
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
    """Offsets as drivers of 73bce80 and 042a404 left them in checkpoints; the last batch wasn't done."""
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
    # It has a queue that came while the stream ran.
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
