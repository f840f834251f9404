"""Tests, without Spark, which queues and offsets a read gets: patterns, assigned queues, lost topics, repeated rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from spark_support import SEND_AT_ONCE, create_topic, send_numbers
from wait_until import wait_until

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.queues import find_queues
from gantrymq.arrow.row_messages import GANTRY_ID
from gantrymq.arrow.rows import read_ranges
from gantrymq.arrow.stream_planning import Progress, advance, initial_position
from gantrymq.arrow.stream_position import StreamPosition
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import BrokerError, CompressionError, ConfigError, DataLost, NoRouteInfo
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE, CompressionType, compress, compression_flag
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.sys_flag import COMPRESSION_MASK
from gantrymq.spark.conditions import push_condition
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import HAS_FILTERS, ReadAllAvailable, ReadMaxRows
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()
T = TypeVar("T")


def options_for(cluster: EmbeddedCluster, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": cluster.name_server, "retrytimeoutms": "3000"} | more)


def ask(options: ReadOptions, question: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
    async def answer() -> T:
        async with ClusterClient(options.name_servers, options.retry_timeout_ms) as brokers:
            return await question(brokers)

    return run(answer())


def numbers(options: ReadOptions) -> list[int]:
    partitions = ask(options, lambda brokers: plan_batch(brokers, options, PushedFilters()))
    return sorted(
        int(n)
        for ranges in partitions
        for batch in read_ranges(ranges, options, BODY)
        for n in batch.column("body").to_pylist()
    )


def test_a_pattern_means_whole_names_and_no_system_topics(cluster: EmbeddedCluster) -> None:
    for topic in ("plan-1", "plan-2", "a-plan-1", "%RETRY%plan-1"):
        create_topic(cluster, topic, 1, brokers=[0])
    options = options_for(cluster, subscribepattern=r"(plan|%RETRY%plan|TBW|SELF).*")
    assert {queue.topic for queue in ask(options, lambda c: find_queues(c, options))} == {"plan-1", "plan-2"}
    nothing = options_for(cluster, subscribepattern="none-.*")
    assert numbers(nothing) == []


def test_a_stream_takes_in_topics_that_come_later(cluster: EmbeddedCluster) -> None:
    options = options_for(cluster, subscribepattern="later-.*", startingoffsets="earliest")
    stream = RocketMQStreamReader(options, BODY)
    start = stream.initialOffset()
    assert StreamPosition.from_json(start).ends == {}
    assert stream.latestOffset(start, ALL) == start
    create_topic(cluster, "later-1", 2)
    send_numbers(cluster, "later-1", range(300))
    end = stream.latestOffset(start, ALL)
    found = [b for p in stream.partitions(start, end) for batch in stream.read(p) for b in batch.column("body")]
    assert sorted(int(b.as_py()) for b in found) == list(range(300))
    stream.stop()


def test_times_of_topics_that_are_not_read_are_refused(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    for which in ({"subscribe": topic}, {"subscribepattern": topic}, {"assign": json.dumps({topic: ["broker-a:0"]})}):
        for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
            options = options_for(cluster, **which, **{name.lower(): json.dumps({topic: 5, f"{topic}x": 5})})
            with pytest.raises(ConfigError, match=f"option {name} names topic {topic}x, which isn't read"):
                numbers(options)
    stream = options_for(cluster, subscribe=topic, startingoffsetsbytimestamp=json.dumps({f"{topic}x": 5}))
    with pytest.raises(ConfigError, match="which isn't read"):
        ask(stream, lambda brokers: initial_position(brokers, stream))


def test_a_stream_needs_an_offset_of_each_queue(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic, other = new_topic(1), new_topic(1)
    # Two batches, one for each broker.
    count = 2 * SEND_AT_ONCE
    send_numbers(cluster, topic, range(count))

    def begun(offsets: object) -> dict[str, int]:
        options = options_for(cluster, subscribe=f"{topic},{other}", startingoffsets=json.dumps(offsets))
        position = ask(options, lambda brokers: initial_position(brokers, options))
        return {
            f"{queue.broker_name}:{queue.queue_id}": end for queue, end in position.ends.items() if queue.topic == topic
        }

    with pytest.raises(ConfigError, match=rf"no offset of {topic} broker-b:0, {other} broker-a:0, {other} broker-b:0"):
        begun({topic: {"broker-a:0": 1}})
    with pytest.raises(ConfigError, match=rf"startingOffsets names topic {topic}x, which isn't read"):
        begun({topic: "latest", other: "latest", f"{topic}x": "latest"})
    latest = begun({topic: "latest", other: "earliest"})
    assert sum(latest.values()) == count
    assert begun({topic: {"broker-a:0": 1, "broker-b:0": -1}, other: "earliest"}) == latest | {"broker-a:0": 1}
    assert begun({topic: "earliest", other: "earliest"}) == dict.fromkeys(latest, 0)


def test_brokers_expected_of_topics_that_are_not_read_are_refused(
    cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    for which in ({"subscribe": topic}, {"subscribepattern": topic}, {"assign": json.dumps({topic: ["broker-a:0"]})}):
        options = options_for(cluster, **which, expectedbrokers=json.dumps({f"{topic}x": ["broker-a"]}))
        with pytest.raises(ConfigError, match=f"option expectedBrokers names topic {topic}x, which isn't read"):
            numbers(options)
        assert numbers(options_for(cluster, **which, expectedbrokers=json.dumps({topic: ["broker-a"]}))) == []


def test_an_end_before_its_start_is_refused(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(400))

    def at(offset: int) -> str:
        return json.dumps({topic: {"broker-a:0": offset}})

    for start, end in ({"startingoffsets": at(20)}, {"endingoffsets": at(10)}), ({"startingtimestamp": "9"}, {}):
        with pytest.raises(ConfigError, match=f"{topic} broker-a:0 starts at .* and ends before"):
            numbers(options_for(cluster, subscribe=topic, **start, **(end or {"endingtimestamp": "8"})))
    nothing = options_for(
        cluster, assign=json.dumps({topic: ["broker-a:0"]}), startingoffsets=at(20), endingoffsets=at(20)
    )
    assert numbers(nothing) == []


def test_assigned_queues(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(400))
    options = options_for(cluster, assign=json.dumps({topic: ["broker-a:1", "broker-b:0"]}))
    others = options_for(cluster, assign=json.dumps({topic: ["broker-a:0", "broker-b:1"]}))
    first, second = numbers(options), numbers(others)
    assert sorted(first + second) == list(range(400))
    assert len(first) == 200
    unknown = options_for(cluster, assign=json.dumps({topic: ["broker-a:7"]}))
    with pytest.raises(ConfigError, match=r"assign names .*broker-a:7; there are"):
        numbers(unknown)


def test_times_of_single_queues(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    far = 4_102_444_800_000
    one = options_for(
        cluster,
        subscribe=topic,
        startingoffsetsbytimestamp=json.dumps({topic: {"broker-a:0": far, "broker-b:0": 0}}),
        startingoffsetsbytimestampstrategy="latest",
    )
    assert len(numbers(one)) == 100
    starts = ask(one, lambda brokers: initial_position(brokers, one)).ends
    assert sorted((queue.broker_name, offset) for queue, offset in starts.items()) == [
        ("broker-a", 100),
        ("broker-b", 0),
    ]


FUTURE_MS = 4_102_444_800_000


@pytest.mark.parametrize(
    "start",
    [
        lambda topic: {"startingtimestamp": str(FUTURE_MS)},
        lambda topic: {"startingoffsetsbytimestamp": json.dumps({topic: FUTURE_MS})},
        lambda topic: {"startingoffsetsbytimestamp": json.dumps({topic: {"broker-b:0": FUTURE_MS}})},
        # The timestamp is in microseconds by mistake.
        lambda topic: {"startingtimestamp": str(now_ms() * 1000)},
    ],
)
def test_a_start_in_the_future_is_refused(
    cluster: EmbeddedCluster, new_topic: Callable[..., str], start: Callable[[str], dict[str, str]]
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    options = options_for(cluster, subscribe=topic, **start(topic))
    with pytest.raises(ConfigError, match=f"{topic} broker-.:0 is to start at the time .* in the future"):
        numbers(options)
    with pytest.raises(ConfigError, match="in the future"):
        ask(options, lambda brokers: initial_position(brokers, options))
    at_end = options_for(cluster, subscribe=topic, startingoffsetsbytimestampstrategy="latest", **start(topic))
    assert len(numbers(at_end)) == (100 if "broker-b:0" in str(start(topic)) else 0)
    ends = ask(at_end, lambda brokers: initial_position(brokers, at_end)).ends
    assert max(ends.values()) == 100


def test_a_batch_of_what_nothing_came_since_is_refused(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    idle, busy = new_topic(1), new_topic(1)
    send_numbers(cluster, idle, range(200))
    send_numbers(cluster, busy, range(200))
    since = now_ms() + 1
    wait_until(lambda: now_ms() > since)
    asked = {"startingtimestamp": str(since)}
    refused = rf"topic {idle} has no message stored at {since} or later: nothing would be read"
    with pytest.raises(ConfigError, match=refused):
        numbers(options_for(cluster, subscribe=idle, **asked))
    # If one of two queues has new messages, the other one is only idle.
    send_numbers(cluster, busy, range(200, 250))
    assert numbers(options_for(cluster, subscribe=busy, **asked)) == list(range(200, 250))
    with pytest.raises(ConfigError, match=refused):
        numbers(options_for(cluster, subscribe=f"{busy},{idle}", **asked))
    both = options_for(cluster, subscribe=f"{busy},{idle}", startingoffsetsbytimestampstrategy="latest", **asked)
    assert numbers(both) == list(range(200, 250))
    # A queue that is named explicitly must have messages.
    newest = options_for(cluster, subscribe=busy, startingoffsets="latest")
    queue_ends = ask(newest, lambda brokers: initial_position(brokers, newest)).ends
    (quiet,) = [queue for queue, end in queue_ends.items() if end == 100]
    named = json.dumps({busy: {f"{quiet.broker_name}:0": since}})
    with pytest.raises(ConfigError, match=f"{busy} {quiet.broker_name}:0 has no message stored at"):
        numbers(options_for(cluster, subscribe=busy, startingoffsetsbytimestamp=named))
    # This is no error for a stream, which also reads later messages.
    stream = options_for(cluster, subscribe=idle, **asked)
    assert set(ask(stream, lambda brokers: initial_position(brokers, stream)).ends.values()) == {100}
    # An end in the future is no error either: the read ends at the current end.
    assert len(numbers(options_for(cluster, subscribe=idle, endingtimestamp=str(FUTURE_MS)))) == 200


@pytest.mark.skipif(not HAS_FILTERS, reason="Python data sources receive filters from Spark 4.1")
def test_conditions_that_leave_an_idle_queue_find_nothing(
    cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(100))
    since = now_ms() + 1
    wait_until(lambda: now_ms() > since)
    send_numbers(cluster, topic, range(100, 150))
    options = options_for(cluster, subscribe=topic, startingtimestamp=str(since))
    from pyspark.sql.datasource import EqualTo

    found = []
    for broker in ("broker-a", "broker-b"):
        filters = PushedFilters()
        assert push_condition(filters, EqualTo(("brokerName",), broker))
        planned = ask(options, lambda brokers, filters=filters: plan_batch(brokers, options, filters))
        found.append(sum(part.end - part.start for ranges in planned for part in ranges))
    assert sorted(found) == [0, 50]


def test_a_missing_topic_is_an_error_for_a_new_query_only(
    cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(100))
    options = options_for(cluster, subscribe=f"{topic},gone", startingoffsets="earliest")
    with pytest.raises(NoRouteInfo, match="gone"):
        numbers(options)
    # A topic of a checkpoint may be unavailable for a while, together with its only broker.
    stream = RocketMQStreamReader(options, BODY)
    start = {topic: {"broker-a:0": 0, "broker-b:0": 0}, "gone": {"broker-z:0": 7}}
    end = stream.latestOffset(start, ALL)
    assert end["gone"] == {"broker-z:0": 7}
    assert sum(end[topic].values()) == 100
    stream.stop()


def test_a_topic_made_anew_is_lost_data(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    options = options_for(cluster, subscribe=topic, startingoffsets="earliest")
    stream = RocketMQStreamReader(options, BODY)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    asyncio.run(_delete(cluster, topic))
    create_topic(cluster, topic, 1)
    send_numbers(cluster, topic, range(10))
    with pytest.raises(DataLost, match=r"another queue|read up to offset 100, but its broker has only"):
        stream.latestOffset(end, ALL)
    stream.stop()
    lenient = RocketMQStreamReader(
        options_for(cluster, subscribe=topic, startingoffsets="earliest", failondataloss="false"), BODY
    )
    lower = lenient.latestOffset(end, ALL)
    assert sum(lower[topic].values()) == 10
    assert bodies(lenient, end, lower) == list(range(10))
    send_numbers(cluster, topic, range(10, 30))
    following = lenient.latestOffset(lower, ALL)
    assert bodies(lenient, lower, following) == list(range(10, 30))
    lenient.stop()


def test_a_topic_made_anew_with_more_messages_is_noticed(
    cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(200))
    options = options_for(cluster, subscribe=topic, startingoffsets="earliest")
    stream = RocketMQStreamReader(options, BODY)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    asyncio.run(_delete(cluster, topic))
    create_topic(cluster, topic, 1)
    send_numbers(cluster, topic, range(1000, 1600))
    with pytest.raises(DataLost, match="its topic was deleted and created again"):
        stream.latestOffset(end, ALL)
    # A repeated batch of the checkpoint fails in the same way.
    again = RocketMQStreamReader(options, BODY)
    with pytest.raises(DataLost, match="its topic was deleted and created again"):
        again.partitions(start, end)
    stream.stop()
    again.stop()
    lenient = RocketMQStreamReader(
        options_for(cluster, subscribe=topic, startingoffsets="earliest", failondataloss="false"), BODY
    )
    assert bodies(lenient, start, end) == []
    following = lenient.latestOffset(end, ReadMaxRows(500))
    last = lenient.latestOffset(following, ALL)
    assert sorted(bodies(lenient, end, following) + bodies(lenient, following, last)) == list(range(1000, 1600))
    assert lenient.latestOffset(last, ALL) == last
    # The new topic has as many messages as the old one.
    asyncio.run(_delete(cluster, topic))
    create_topic(cluster, topic, 1)
    asyncio.run(_fill(cluster, topic, last))
    lenient.stop()
    restarted = RocketMQStreamReader(options, BODY)
    with pytest.raises(DataLost, match="its topic was deleted and created again"):
        restarted.latestOffset(last, ALL)
    restarted.stop()


def test_a_stream_that_leaves_a_topic_and_comes_back(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    first, second = new_topic(1), new_topic(1)
    send_numbers(cluster, first, range(100))
    send_numbers(cluster, second, range(100, 150))

    def reader(topic: str) -> RocketMQStreamReader:
        return RocketMQStreamReader(options_for(cluster, subscribe=topic, startingoffsets="earliest"), BODY)

    readers = [reader(topic) for topic in (first, second, first)]
    place, found = readers[0].initialOffset(), []
    for stream in readers:
        end = stream.latestOffset(place, ALL)
        found.append(bodies(stream, place, end))
        place = end
        stream.stop()
    assert found == [list(range(100)), list(range(100, 150)), []]


def bodies(stream: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions = stream.partitions(start, end)
    return sorted(int(n.as_py()) for p in partitions for batch in stream.read(p) for n in batch.column("body"))


class _BusyBroker(ClusterClient):
    """A client with one broker that is too busy to respond to pulls."""

    async def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        if queue.broker_name == "broker-a":
            raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many pulls", queue.broker_name)
        return await super().store_time(queue, offset, group)


def test_a_busy_broker_holds_up_its_own_queues_only(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    queues = [MessageQueue(topic, broker, 0) for broker in ("broker-a", "broker-b")]
    asyncio.run(_fill(cluster, topic, {topic: {"broker-a:0": 2, "broker-b:0": 2}}))
    options = options_for(cluster, subscribe=topic)
    position = ask(options, lambda brokers: initial_position(brokers, options))
    asyncio.run(_fill(cluster, topic, {topic: {"broker-a:0": 1, "broker-b:0": 1}}))

    async def further() -> Progress:
        async with _BusyBroker(options.name_servers, options.retry_timeout_ms) as brokers:
            return await advance(brokers, options, position)

    assert run(further()).ends == dict(zip(queues, [2, 3], strict=True))


async def _fill(cluster: EmbeddedCluster, topic: str, place: dict[str, Any]) -> None:
    """Sends as many messages to each queue as the position requires."""
    async with Producer(cluster.name_server, "numbers") as producer:
        for key, count in place[topic].items():
            queue = MessageQueue(topic, key.partition(":")[0], 0)
            await producer.send_batch([Message(topic, b"%d" % n) for n in range(count)], queue=queue)


async def _delete(cluster: EmbeddedCluster, topic: str) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.delete_topic(topic, "DefaultCluster")


def test_rows_that_were_written_twice(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    rows = [Message(topic, b"%d" % n, properties={GANTRY_ID: f"write-0-{n}"}) for n in range(100)]
    plain = [Message(topic, b"%d" % n) for n in range(100, 110)]

    async def send() -> None:
        # Simulates a task that ran again after it sent 60 rows. Each batch goes to another queue.
        async with Producer(cluster.name_server, "numbers") as producer:
            for batch in (rows[:60], plain, rows[:50], plain, rows[50:]):
                await producer.send_batch(batch)

    asyncio.run(send())
    assert len(numbers(options_for(cluster, subscribe=topic))) == 180
    once = options_for(cluster, subscribe=topic, deduplicate="true")
    # Messages without an id are never copies of each other.
    assert numbers(once) == sorted([*range(100), *range(100, 110), *range(100, 110)])


def test_corrupt_bodies_between_good_ones(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    good = compress(b"7", CompressionType.ZSTD)
    flag = compression_flag(CompressionType.ZSTD)
    # Truncated data, data that is not compressed, an unknown compression type, and a result above the size limit.
    broken = [
        (good[:-3], flag),
        (b"nonsense", flag),
        (good, flag | COMPRESSION_MASK),
        (compress(bytes(MAX_DECOMPRESSED_SIZE + 1), CompressionType.ZSTD), flag),
    ]
    options = options_for(cluster, subscribe=topic)

    async def send(brokers: ClusterClient) -> None:
        queue = (await brokers.write_queues(topic))[0]
        for body, sys_flag in [(b"5", 0), broken[0], (b"6", 0), *broken[1:], (good, flag)]:

            def command(queue: MessageQueue, body: bytes = body, sys_flag: int = sys_flag) -> RemotingCommand:
                return send_command("numbers", queue, body, b"", 0, sys_flag=sys_flag)

            await brokers.send([queue], command)

    ask(options, send)
    with pytest.raises(CompressionError, match=rf"in {topic} broker-.:0 offsets 0 to 7: offset 1 of queue 0: comp"):
        numbers(options)
    lenient = options_for(cluster, subscribe=topic, corruptbodies="null")
    (ranges,) = ask(lenient, lambda brokers: plan_batch(brokers, lenient, PushedFilters()))
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in ("queueOffset", "body", "bodyError")])
    rows = [row for batch in read_ranges(ranges, lenient, schema) for row in batch.to_pylist()]
    assert {row["queueOffset"]: row["body"] for row in rows if row["body"] is not None} == {0: b"5", 2: b"6", 6: b"7"}
    assert [row["queueOffset"] for row in rows if row["bodyError"] is not None] == [1, 3, 4, 5]


def test_small_ranges_share_a_partition(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(8)
    send_numbers(cluster, topic, range(3200))

    def plan(**more: str) -> list[int]:
        options = options_for(cluster, subscribe=topic, **more)
        return [len(ranges) for ranges in ask(options, lambda c: plan_batch(c, options, PushedFilters()))]

    assert plan() == [16]
    assert plan(minpartitions="1") == [1] * 16
    assert plan(minpartitions="20") == [1] * len(plan(minpartitions="20"))
    assert len(plan(minpartitions="20")) >= 20
