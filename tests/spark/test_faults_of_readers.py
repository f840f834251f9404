"""Tests that reads without Spark and those of the Spark source treat the same faults in the same way.

Both are based on the same modules. The readers of the source run in this process, as in a task of Spark.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster
from spark_support import create_topic, send_numbers

from gantrymq.arrow import read_topic, scan_store, stream_topic
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.client.broker_api import BrokerApi
from gantrymq.errors import BrokerUnavailable, DataLost, GantryError, RecordError, StoreError
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQBatchReader
from gantrymq.spark.store.datasource import RocketMQStoreReader
from gantrymq.spark.store.options import StoreOptions
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
COUNT = 200
#: Position of a record's queue offset, and of its body if its hosts have IPv4 addresses.
OFFSET_AT, BODY_AT = 20, 88


def numbers_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def without_spark(name_server: str, topic: str, **options: str) -> list[int]:
    return numbers_of(iter(read_topic(name_server, topic, columns=["body"], options=options)))


def as_stream(name_server: str, topic: str, **options: str) -> list[int]:
    """Reads until the last number."""

    async def read() -> list[int]:
        found: list[int] = []
        async with stream_topic(name_server, topic, start="earliest", columns=["body"], options=options) as stream:
            async for batch in stream:
                found += numbers_of(iter([batch]))
                if len(found) >= COUNT:
                    break
        return sorted(found)

    return asyncio.run(read())


def in_spark(name_server: str, topic: str, **options: str) -> list[int]:
    given = {"nameserver": name_server, "subscribe": topic} | {name.lower(): text for name, text in options.items()}
    reader = RocketMQBatchReader(ReadOptions.parse(given), BODY)
    return numbers_of(batch for partition in reader.partitions() for batch in reader.read(partition))


Read = Callable[..., list[int]]
every_reader = pytest.mark.parametrize("read", [without_spark, as_stream, in_spark])
every_batch_reader = pytest.mark.parametrize("read", [without_spark, in_spark])


@pytest.fixture(scope="module")
def topic(cluster: EmbeddedCluster) -> str:
    """Returns a topic with COUNT numbers in one queue."""
    create_topic(cluster, "faults", 1, brokers=[0])
    send_numbers(cluster, "faults", range(COUNT))
    return "faults"


def sizes(records: bytes) -> list[int]:
    found, at = [], 0
    while at < len(records):
        (size,) = struct.unpack_from(">i", records, at)
        found.append(size)
        at += size
    return found


def cut_off(records: bytearray) -> bytes:
    return bytes(records[:-5])


def followed_by_zeros(records: bytearray) -> bytes:
    return bytes(records) + bytes(3)


def of_size_zero(records: bytearray) -> bytes:
    records[:4] = bytes(4)
    return bytes(records)


def of_a_huge_size(records: bytearray) -> bytes:
    records[:4] = b"\x7f\xff\xff\xff"
    return bytes(records)


def of_a_negative_size(records: bytearray) -> bytes:
    records[:4] = b"\xff\xff\xff\xff"
    return bytes(records)


def with_another_body(records: bytearray) -> bytes:
    records[BODY_AT] ^= 1
    return bytes(records)


def random_bytes(records: bytearray) -> bytes:
    return bytes(37 * n % 256 for n in range(len(records)))


def without_a_record(records: bytearray) -> bytes:
    return bytes(records[: -sizes(bytes(records))[-1]])


def twice_the_same(records: bytearray) -> bytes:
    first = sizes(bytes(records))[0]
    return bytes(records[:first] + records[:first] + records[first + sizes(bytes(records))[1] :])


def of_another_queue_offset(records: bytearray) -> bytes:
    struct.pack_into(">q", records, OFFSET_AT, 1 << 40)
    return bytes(records)


@every_reader
@pytest.mark.parametrize(
    ("craft", "error"),
    [
        (cut_off, RecordError),
        (followed_by_zeros, RecordError),
        (of_size_zero, RecordError),
        (of_a_huge_size, RecordError),
        (of_a_negative_size, RecordError),
        (with_another_body, RecordError),
        (random_bytes, RecordError),
        (without_a_record, DataLost),
        (twice_the_same, DataLost),
        (of_another_queue_offset, DataLost),
    ],
)
def test_crafted_pulls(
    cluster: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    read: Read,
    craft: Callable[[bytearray], bytes],
    error: type[GantryError],
) -> None:
    assert read(cluster.name_server, topic) == list(range(COUNT))
    pull = BrokerApi.pull_at_once

    async def crafted(self: BrokerApi, *args: Any, **more: Any) -> Any:
        result = await pull(self, *args, **more)
        return result._replace(body=craft(bytearray(result.body))) if result.body else result

    monkeypatch.setattr(BrokerApi, "pull_at_once", crafted)
    with pytest.raises(error, match="faults broker-a:0"):
        read(cluster.name_server, topic)


@every_reader
def test_a_body_with_another_crc_is_a_null(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    pull = BrokerApi.pull_at_once

    async def crafted(self: BrokerApi, *args: Any, **more: Any) -> Any:
        result = await pull(self, *args, **more)
        return result._replace(body=with_another_body(bytearray(result.body))) if result.body else result

    monkeypatch.setattr(BrokerApi, "pull_at_once", crafted)
    with pytest.raises(TypeError, match="NoneType"):
        read(cluster.name_server, topic, corruptBodies="null")
    # The first body is "0", and has another bit now.
    assert read(cluster.name_server, topic, checkCrc="false") == sorted([1, *range(1, COUNT)])


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalCluster]:
    with MortalCluster(tmp_path) as cluster:
        cluster.create_topic("faults")
        cluster.send("faults", range(COUNT))
        yield cluster


@every_reader
def test_a_broker_that_comes_back(mortal: MortalCluster, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    """The broker dies when the read requests its first messages. It gets another port."""
    pull = BrokerApi.pull_at_once
    dies = threading.Lock()
    restarts: list[threading.Thread] = []

    def restart() -> None:
        mortal.stop_broker("broker-a")
        mortal.start_broker("broker-a")

    async def dying(self: BrokerApi, *args: Any, **more: Any) -> Any:
        if dies.acquire(blocking=False):
            restarts.append(threading.Thread(target=restart))
            restarts[0].start()
            while "broker-a" in mortal.alive:
                await asyncio.sleep(0.001)
        return await pull(self, *args, **more)

    monkeypatch.setattr(BrokerApi, "pull_at_once", dying)
    assert read(mortal.name_server, "faults") == list(range(COUNT))
    restarts[0].join()


@every_batch_reader
def test_a_broker_that_stays_away(mortal: MortalCluster, read: Read) -> None:
    mortal.stop_broker("broker-b")
    with pytest.raises(BrokerUnavailable, match="broker-b"):
        read(mortal.name_server, "faults", retryTimeoutMs="300")
    left = read(mortal.name_server, "faults", retryTimeoutMs="300", failOnDataLoss="false")
    assert len(left) == COUNT // 2
    assert set(left) < set(range(COUNT))


def scan(store: Path, **options: str) -> list[int]:
    return numbers_of(iter(scan_store(store, columns=["body"], options=options)))


def scan_in_spark(store: Path, **options: str) -> list[int]:
    given = {"path": str(store)} | {name.lower(): text for name, text in options.items()}
    reader = RocketMQStoreReader(StoreOptions.parse(given), BODY, BODY.names)
    return numbers_of(batch for partition in reader.partitions() for batch in reader.read(partition))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Returns the only file of the log of a stopped broker."""
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send_numbers(cluster, "faults", range(COUNT))
    return next((tmp_path / "broker-a" / "commitlog").iterdir())


def change(file: Path, place: Callable[[bytes], int], new: bytes) -> None:
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(place(content))
        opened.write(new)


@pytest.mark.parametrize("read", [scan, scan_in_spark])
@pytest.mark.parametrize(
    ("place", "new"),
    [
        (lambda content: BODY_AT, b"x"),
        (lambda content: 4, bytes(4)),
        (lambda content: 0, b"\x7f\xff\xff\xff"),
        (lambda content: content.index(b"KEYS\x01k100\x02") - 40, b"x" * 20),
        (lambda content: content.index(b"KEYS\x01k199\x02") - 40, b"x" * 20),
    ],
    ids=["body", "magic code", "size", "middle", "last record"],
)
def test_damaged_stores(log: Path, read: Read, place: Callable[[bytes], int], new: bytes) -> None:
    store = log.parent.parent
    assert read(store) == list(range(COUNT))
    change(log, place, new)
    with pytest.raises(StoreError):
        read(store)


@pytest.mark.parametrize("read", [scan, scan_in_spark])
def test_the_undamaged_part_of_a_store(log: Path, read: Read) -> None:
    change(log, lambda content: content.index(b"KEYS\x01k100\x02") - 40, b"x" * 20)
    assert read(log.parent.parent, failOnDataLoss="false") == list(range(100))
