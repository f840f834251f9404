"""A broker that comes back without the last messages that a stream has read, and gets new ones in their place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from spark_support import create_topic, send_numbers

from gantrymq.errors import DataLost
from gantrymq.spark.arrow_records import ARROW_TYPES
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxRows
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()
#: Each topic's one queue has so many messages on the disk when the broker crashes, of so many that were read.
KEPT, READ = 95, 100
#: So many come after the crash: the queue ends before the stream's place, there, and after it.
NEW = {"fewer": 3, "as-many": READ - KEPT, "more": 10}
#: Its stream's place is that of the broker's disk: it has lost nothing.
UNHARMED = "unharmed"

Offset = dict[str, Any]


class _Places(NamedTuple):
    """What a checkpoint has: where a stream from the earliest message began, and got to; where one from the latest
    message began."""

    start: Offset
    end: Offset
    latest: Offset


class _Lost(NamedTuple):
    cluster: EmbeddedCluster
    places: dict[str, _Places]


def reader(cluster: EmbeddedCluster, topic: str, **more: str) -> RocketMQStreamReader:
    options = {"nameserver": cluster.name_server, "subscribe": topic, "retrytimeoutms": "3000"} | more
    return RocketMQStreamReader(ReadOptions.parse(options, streaming=True), BODY)


def numbers(stream: RocketMQStreamReader, start: Offset, end: Offset) -> list[int]:
    return [int(n) for p in stream.partitions(start, end) for b in stream.read(p) for n in b["body"].to_pylist()]


def new_numbers(topic: str) -> list[int]:
    return list(range(1000, 1000 + NEW[topic]))


def _places(cluster: EmbeddedCluster, topic: str) -> _Places:
    stream = reader(cluster, topic, startingoffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    stream.stop()
    at_the_end = reader(cluster, topic)
    latest = at_the_end.initialOffset()
    at_the_end.stop()
    return _Places(*(json.loads(json.dumps(offset)) for offset in (start, end, latest)))


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Lost]:
    directory = tmp_path_factory.mktemp("lost")
    store, disk = directory / "store", directory / "disk"
    with EmbeddedCluster(directory=store) as cluster:
        for topic in (*NEW, UNHARMED):
            create_topic(cluster, topic, 1, brokers=[0])
            send_numbers(cluster, topic, range(KEPT))
    shutil.copytree(store, disk)
    with EmbeddedCluster(directory=store) as cluster:
        places = {UNHARMED: _places(cluster, UNHARMED)}
        for topic in NEW:
            send_numbers(cluster, topic, range(KEPT, READ))
            places[topic] = _places(cluster, topic)
    shutil.rmtree(store)
    shutil.copytree(disk, store)
    with EmbeddedCluster(directory=store) as cluster:
        for topic, count in NEW.items():
            send_numbers(cluster, topic, range(1000, 1000 + count))
        send_numbers(cluster, UNHARMED, range(KEPT, READ))
        yield _Lost(cluster, places)


@pytest.mark.parametrize("topic", NEW)
def test_it_is_an_error(lost: _Lost, topic: str) -> None:
    for place in (lost.places[topic].end, lost.places[topic].latest):
        stream = reader(lost.cluster, topic)
        with pytest.raises(DataLost, match=rf"^{topic} broker-a:0 was read up to offset 100, "):
            stream.latestOffset(place, ALL)
        stream.stop()


@pytest.mark.parametrize("topic", NEW)
def test_what_came_since_is_read_where_that_is_allowed(lost: _Lost, topic: str) -> None:
    stream, place = reader(lost.cluster, topic, failondataloss="false"), lost.places[topic].end
    seen: list[int] = []
    while (following := stream.latestOffset(place, ReadMaxRows(4))) != place:
        seen += numbers(stream, place, following)
        place = following
    stream.stop()
    assert seen == new_numbers(topic)


@pytest.mark.parametrize("topic", NEW)
def test_a_micro_batch_that_is_run_again(lost: _Lost, topic: str) -> None:
    """It would have other rows than at its first time, which a sink may have."""
    start, end, _ = lost.places[topic]
    stream = reader(lost.cluster, topic)
    with pytest.raises(DataLost, match=rf"^{topic} broker-a:0 was read up to offset 100, "):
        stream.partitions(start, end)
    stream.stop()
    lenient = reader(lost.cluster, topic, failondataloss="false")
    found = numbers(lenient, start, end)
    assert found == list(range(KEPT))
    found = numbers(lenient, end, lenient.latestOffset(end, ALL))
    assert found == new_numbers(topic)
    lenient.stop()


def test_a_checkpoint_without_times_goes_on(lost: _Lost) -> None:
    """As earlier versions have left them."""
    end = {name: part for name, part in lost.places["more"].end.items() if name != "$last"}
    stream = reader(lost.cluster, "more")
    following = stream.latestOffset(end, ALL)
    assert numbers(stream, end, following) == new_numbers("more")[READ - KEPT :]
    # And what it leaves itself has them.
    assert following["$last"]["more"].keys() == {"broker-a:0"}
    stream.stop()


def test_a_broker_that_lost_nothing(lost: _Lost) -> None:
    start, end, _ = lost.places[UNHARMED]
    stream = reader(lost.cluster, UNHARMED)
    assert numbers(stream, start, end) == list(range(KEPT))
    following = stream.latestOffset(end, ALL)
    assert numbers(stream, end, following) == list(range(KEPT, READ))
    assert stream.latestOffset(following, ALL) == following
    stream.stop()
