"""Tests reads while a broker with some of the messages is down, and while a NameServer has no routes."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster
from wait_until import wait_until

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.name_server_client import NoBrokers
from gantrymq.arrow.planning import CLOCK_MARGIN_MS, plan_batch
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ConfigError, NoRouteInfo, RouteNotReady
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxRows

BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()
T = TypeVar("T")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalCluster]:
    with MortalCluster(tmp_path_factory.mktemp("mortal")) as cluster:
        yield cluster


@pytest.fixture
def cluster(brokers: MortalCluster) -> Iterator[MortalCluster]:
    """Restarts brokers that are down after a test."""
    yield brokers
    for name in {"broker-a", "broker-b"} - brokers.alive:
        brokers.start_broker(name)


@pytest.fixture
def topic(cluster: MortalCluster) -> str:
    """Creates a topic with 200 messages, 50 in each queue."""
    topic = f"away-{next(_numbers)}"
    cluster.create_topic(topic)
    cluster.send(topic, range(200))
    return topic


def options_for(cluster: MortalCluster, topic: str, **more: str) -> ReadOptions:
    given = {"nameserver": cluster.name_server, "retrytimeoutms": "300"} | more
    return ReadOptions.parse(given if {"assign", "subscribepattern"} & given.keys() else given | {"subscribe": topic})


def ask(options: ReadOptions, question: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
    async def answer() -> T:
        async with ClusterClient(options.name_servers, options.retry_timeout_ms) as cluster:
            return await question(cluster)

    return run(answer())


def numbers(options: ReadOptions) -> list[int]:
    partitions = ask(options, lambda cluster: plan_batch(cluster, options, PushedFilters()))
    return sorted(
        int(n)
        for ranges in partitions
        for batch in read_ranges(ranges, options, BODY)
        for n in batch.column("body").to_pylist()
    )


def bodies(stream: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions = stream.partitions(start, end)
    return sorted(int(n.as_py()) for p in partitions for batch in stream.read(p) for n in batch.column("body"))


def of_queues(topic: str, *queues: str) -> str:
    return json.dumps({topic: dict.fromkeys(queues, 0)})


# -- batch reads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "naming",
    [
        lambda topic: {"expectedbrokers": "broker-a, broker-b"},
        lambda topic: {"expectedbrokers": json.dumps({topic: ["broker-b"]})},
        lambda topic: {"startingoffsets": of_queues(topic, "broker-b:0")},
        lambda topic: {"endingoffsets": json.dumps({topic: {"broker-b:1": 10}})},
        lambda topic: {"startingoffsetsbytimestamp": of_queues(topic, "broker-b:0")},
        lambda topic: {"assign": json.dumps({topic: ["broker-a:0", "broker-a:1", "broker-b:0"]})},
    ],
    ids=["list", "by topic", "starting", "ending", "times", "assign"],
)
def test_half_of_a_topic_is_an_error_or_a_warning(
    cluster: MortalCluster, topic: str, naming: Callable[[str], dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    more = naming(topic)
    everything = numbers(options_for(cluster, topic, **more))
    cluster.stop_broker("broker-b")
    with pytest.raises(BrokersAway, match=f"broker-b is away, which has queues of topic {topic}") as caught:
        numbers(options_for(cluster, topic, **more))
    assert "(option retryTimeoutMs)" in "".join(caught.value.__notes__)
    with caplog.at_level(logging.WARNING):
        left = numbers(options_for(cluster, topic, failondataloss="false", **more))
    assert len(left) == 100
    assert set(left) < set(everything)
    assert "broker-b is away" in caplog.text
    # The read waits for the broker.
    starting = threading.Thread(target=cluster.start_broker, args=("broker-b",))
    starting.start()
    try:
        assert numbers(options_for(cluster, topic, **more | {"retrytimeoutms": "30000"})) == everything
    finally:
        starting.join()


def test_an_order_topics_configuration_names_its_brokers(cluster: MortalCluster, topic: str) -> None:
    async def order() -> None:
        async with AdminClient(cluster.name_server) as admin:
            await admin.kv_put("ORDER_TOPIC_CONFIG", topic, "broker-a:2;broker-b:2")

    run(order())
    assert len(numbers(options_for(cluster, topic))) == 200
    cluster.stop_broker("broker-b")
    with pytest.raises(BrokersAway, match="says its order configuration"):
        numbers(options_for(cluster, topic))


def test_a_queue_that_no_broker_has_is_a_mistake(cluster: MortalCluster, topic: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"startingOffsets names .*broker-b:7"):
        numbers(options_for(cluster, topic, startingoffsets=of_queues(topic, "broker-b:7"), retrytimeoutms="60000"))
    assert time.monotonic() - began < 30


# -- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_time", [False, True])
def test_a_broker_that_comes_back_is_read_from_where_the_stream_began(
    cluster: MortalCluster, topic: str, by_time: bool
) -> None:
    sent = time.time() + CLOCK_MARGIN_MS / 1000
    wait_until(lambda: time.time() > sent)
    began = {"startingtimestamp": str(int(time.time() * 1000))} if by_time else {"startingoffsets": "latest"}
    cluster.stop_broker("broker-b")
    stream = RocketMQStreamReader(options_for(cluster, topic, **began), BODY)
    start = stream.initialOffset()
    cluster.send(topic, range(200, 210))
    first = stream.latestOffset(start, ALL)
    assert bodies(stream, start, first) == list(range(200, 210))
    stream.stop()

    cluster.start_broker("broker-b")
    cluster.send(topic, range(210, 230))
    # A new queue on a known broker is read from its beginning.
    cluster.create_topic(topic, 3)
    cluster.send(topic, range(230, 260))
    restarted = RocketMQStreamReader(options_for(cluster, topic, **began), BODY)
    second = restarted.latestOffset(json.loads(json.dumps(first)), ALL)
    assert bodies(restarted, first, second) == list(range(210, 260))
    restarted.stop()


def test_a_stream_that_began_at_the_earliest_reads_all_of_a_broker_that_comes_back(
    cluster: MortalCluster, topic: str
) -> None:
    cluster.stop_broker("broker-b")
    stream = RocketMQStreamReader(options_for(cluster, topic, startingoffsets="earliest"), BODY)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    cluster.start_broker("broker-b")
    second = stream.latestOffset(first, ALL)
    assert sorted(bodies(stream, start, first) + bodies(stream, first, second)) == list(range(200))
    stream.stop()


def test_a_run_of_what_is_available_is_complete(
    cluster: MortalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint includes a broker that is down."""
    options = options_for(cluster, topic, startingoffsets="earliest")
    stream = RocketMQStreamReader(options, BODY)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    cluster.send(topic, range(200, 240))
    cluster.stop_broker("broker-b")
    # A running stream continues with the other brokers.
    assert len(bodies(stream, end, stream.latestOffset(end, ALL))) == 20
    stream.stop()
    run_ = RocketMQStreamReader(options, BODY)
    with caplog.at_level(logging.WARNING):
        assert len(bodies(run_, end, run_.latestOffset(end, ALL))) == 20
    assert "broker broker-b is away: 2 queues of this stream keep their position" in caplog.text
    with pytest.raises(BrokersAway, match=r"broker-b is away.*says a NameServer"):
        run_.prepareForTriggerAvailableNow()
    cluster.give_up("broker-b")
    run_.prepareForTriggerAvailableNow()
    with pytest.raises(BrokersAway, match=r"broker-b is away.*says the checkpoint"):
        run_.latestOffset(end, ALL)
    run_.stop()
    lenient = RocketMQStreamReader(options_for(cluster, topic, failondataloss="false"), BODY)
    lenient.prepareForTriggerAvailableNow()
    following = lenient.latestOffset(end, ALL)
    assert len(bodies(lenient, end, following)) == 20
    assert lenient.latestOffset(following, ALL) == following
    lenient.stop()


@pytest.mark.parametrize("known", [True, False], ids=["of the checkpoint", "new"])
def test_a_run_of_what_is_available_does_not_end_halfway(
    cluster: MortalCluster, topic: str, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker goes down during a run after it was there at the start."""
    options = options_for(cluster, topic, startingoffsets="earliest")
    if not known:
        cluster.stop_broker("broker-b")
    stream = RocketMQStreamReader(options, BODY)
    start = stream.initialOffset()
    if not known:
        cluster.start_broker("broker-b")
    stream.prepareForTriggerAvailableNow()
    place = stream.latestOffset(start, ReadMaxRows(60)) if known else start
    read = bodies(stream, start, place)
    cluster.stop_broker("broker-b")
    # The run first returns the available rows, then raises the error.
    following = stream.latestOffset(place, ALL)
    read += bodies(stream, place, following)
    assert len(read) == (130 if known else 100)
    with pytest.raises(
        BrokersAway, match="no response from the masters of broker-b: 2 queues aren't read up to"
    ) as caught:
        stream.latestOffset(following, ALL)
    assert "(option retryTimeoutMs)" in "".join(caught.value.__notes__)
    lenient = RocketMQStreamReader(
        options_for(cluster, topic, startingoffsets="earliest", failondataloss="false"), BODY
    )
    lenient._target = stream._target
    with caplog.at_level(logging.WARNING):
        assert lenient.latestOffset(following, ALL) == following
    assert "the run ends here, as failOnDataLoss is false" in caplog.text
    lenient.stop()
    # The run continues from the checkpoint; so does the current one if the broker is back in time.
    cluster.start_broker("broker-b")
    rest = stream.latestOffset(following, ALL)
    assert sorted(read + bodies(stream, following, rest)) == list(range(200))
    assert stream.latestOffset(rest, ALL) == rest
    stream.stop()
    again = RocketMQStreamReader(options, BODY)
    again.prepareForTriggerAvailableNow()
    assert sorted(read + bodies(again, following, again.latestOffset(following, ALL))) == list(range(200))
    again.stop()


def test_a_run_waits_for_a_broker_that_starts_again(cluster: MortalCluster, topic: str) -> None:
    stream = RocketMQStreamReader(options_for(cluster, topic, startingoffsets="earliest", retrytimeoutms="30000"), BODY)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    cluster.stop_broker("broker-b")
    half = stream.latestOffset(start, ALL)
    comes_back = threading.Thread(target=cluster.start_broker, args=("broker-b",))
    comes_back.start()
    end = stream.latestOffset(half, ALL)
    comes_back.join()
    assert sorted(bodies(stream, start, half) + bodies(stream, half, end)) == list(range(200))
    stream.stop()


# -- a NameServer that has just started ---------------------------------------------------------------------------


@pytest.fixture
def forgetful(cluster: MortalCluster) -> Iterator[Callable[[], None]]:
    """Restarts the NameServer without routes. The yielded function then restarts the brokers in the background."""
    names = sorted(cluster.alive)
    for name in names:
        cluster.stop_broker(name)
    cluster.stop_name_server()
    cluster.start_name_server()
    threads = []

    def come_back() -> None:
        for name in names:
            threads.append(threading.Thread(target=cluster.start_broker, args=(name,)))
            threads[-1].start()

    yield come_back
    for thread in threads:
        thread.join()


PATIENT = {"retrytimeoutms": "30000", "expectedbrokers": "broker-a,broker-b"}


def test_a_topic_without_a_route_is_asked_for_again(
    cluster: MortalCluster, topic: str, forgetful: Callable[[], None]
) -> None:
    with pytest.raises(NoRouteInfo):
        numbers(options_for(cluster, topic))
    with pytest.raises(NoBrokers, match="no broker has registered"):
        numbers(options_for(cluster, topic, subscribepattern=f"{topic}.*"))
    forgetful()
    assert numbers(options_for(cluster, topic, **PATIENT)) == list(range(200))


def test_so_it_is_by_a_pattern_and_by_a_new_stream(
    cluster: MortalCluster, topic: str, forgetful: Callable[[], None]
) -> None:
    forgetful()
    stream = RocketMQStreamReader(
        options_for(cluster, topic, subscribepattern=f"{topic}.*", startingoffsets="earliest", **PATIENT), BODY
    )
    start = stream.initialOffset()
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == list(range(200))
    stream.stop()


def test_so_it_is_by_a_write(cluster: MortalCluster, topic: str, forgetful: Callable[[], None]) -> None:
    options = options_for(cluster, topic, **PATIENT)
    forgetful()
    queues = ask(options, lambda brokers: brokers.write_queues(topic))
    assert {queue.topic for queue in queues} == {topic}


def test_a_running_stream_stays_where_it_is(cluster: MortalCluster, topic: str) -> None:
    for naming in ({}, {"subscribepattern": f"{topic}.*"}):
        stream = RocketMQStreamReader(options_for(cluster, topic, startingoffsets="earliest", **naming), BODY)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        for name in sorted(cluster.alive):
            cluster.stop_broker(name)
        cluster.stop_name_server()
        cluster.start_name_server()
        assert stream.latestOffset(end, ALL) == end
        for name in ("broker-a", "broker-b"):
            cluster.start_broker(name)
        assert stream.latestOffset(end, ALL) == end
        stream.stop()


# -- a NameServer that has restarted -------------------------------------------------------------------------------


@pytest.fixture
def half(cluster: MortalCluster, topic: str) -> str:
    """Restarts the NameServer so that its route of a topic has only the queues of broker-a."""
    cluster.stop_name_server()
    cluster.stop_broker("broker-b")
    cluster.start_name_server(remembers=True)
    cluster.wait_for_route(topic)
    return topic


def test_no_batch_has_half_of_a_topic_after_a_restart(
    cluster: MortalCluster, half: str, caplog: pytest.LogCaptureFixture
) -> None:
    for naming in ({}, {"subscribepattern": f"{half}|other"}):
        with pytest.raises(BrokersAway, match=f"broker-b is away, which has queues of topic {half}") as caught:
            numbers(options_for(cluster, half, **naming))
        assert "deleteKvConfig -s LOST_BROKERS" in str(caught.value)
    assert len(numbers(options_for(cluster, half, failondataloss="false"))) == 100
    starting = threading.Timer(0.3, cluster.start_broker, ("broker-b",))
    starting.start()
    try:
        assert numbers(options_for(cluster, half, retrytimeoutms="30000")) == list(range(200))
    finally:
        starting.join()


def test_no_stream_begins_with_half_of_a_topic_after_a_restart(cluster: MortalCluster, half: str) -> None:
    stream = RocketMQStreamReader(options_for(cluster, half), BODY)
    with pytest.raises(BrokersAway, match="broker-b is away"):
        stream.initialOffset()
    stream.stop()


def test_no_write_goes_to_half_of_a_topic_after_a_restart(cluster: MortalCluster, half: str) -> None:
    """Otherwise a sharding key would be sent to another queue than usual."""
    options = options_for(cluster, half)
    for question in (
        lambda brokers: brokers.write_queues(half),
        lambda brokers: brokers.all_write_queues(half),
    ):
        with pytest.raises(RouteNotReady, match="broker-b, with queues of topic"):
            ask(options, question)
    cluster.start_broker("broker-b")
    assert len(ask(options, lambda brokers: brokers.write_queues(half))) == 4
    assert len(ask(options, lambda brokers: brokers.all_write_queues(half))) == 4


def test_a_name_server_that_waits_for_brokers_is_asked_again(cluster: MortalCluster, topic: str) -> None:
    cluster.stop_name_server()
    cluster.start_name_server(remembers=True, wait_s=3)
    with pytest.raises(RouteNotReady, match="waits for brokers"):
        numbers(options_for(cluster, topic, retrytimeoutms="100", failondataloss="false"))
    for name in ("broker-a", "broker-b"):
        cluster.stop_broker(name)
        cluster.start_broker(name)
    assert numbers(options_for(cluster, topic, retrytimeoutms="30000")) == list(range(200))
