"""Tests streams after a broker lost the last messages that were read, and received new ones at the same offsets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from spark_support import create_topic, send_numbers

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.errors import DataLost
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxRows
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()
#: Messages of each topic's only queue: on disk when the broker crashes, and read before that.
KEPT, READ = 95, 100
#: Messages sent after the crash. The queue then ends before, at or after the stream's position.
NEW = {"fewer": 3, "as-many": READ - KEPT, "more": 10}
#: Topic of a stream that read only what is on disk, so nothing is lost.
UNHARMED = "unharmed"

Offset = dict[str, Any]


class _Places(NamedTuple):
    """Positions in a checkpoint.

    `start` and `end` are those of a stream from the earliest message; `latest` is the start of one from the latest.
    """

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
    """A repeated micro-batch would have other rows than those that a sink may already have."""
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
    """Earlier versions left such checkpoints."""
    end = {name: part for name, part in lost.places["more"].end.items() if name != "$last"}
    stream = reader(lost.cluster, "more")
    following = stream.latestOffset(end, ALL)
    assert numbers(stream, end, following) == new_numbers("more")[READ - KEPT :]
    # The new checkpoint has the times.
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
