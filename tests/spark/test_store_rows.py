"""Tests that native code and numpy read a part of a commit log file into rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pyarrow as pa
import pytest
from constants import change_constant

from gantrymq.arrow.body_values import CorruptBodies
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.native_records import NativeRecords
from gantrymq.arrow.numpy_records import NumpyRecords
from gantrymq.arrow.store.planning import LogRange
from gantrymq.arrow.store.rows import read_range
from gantrymq.errors import StoreError
from gantrymq.kernels import native
from gantrymq.protocol.compression import CompressionType, compress, compression_flag
from gantrymq.protocol.record import MAGIC_BLANK, encode_host, encode_record
from gantrymq.spark.store.options import StoreOptions

HOST = encode_host("10.1.2.3", 10911)
COLUMNS = pa.schema([(name, ARROW_TYPES[name]) for name in ("topic", "queueOffset", "body", "tags")])
BASE = 1 << 30
Read = Callable[..., list[dict[str, object]]]


@pytest.fixture(params=[NumpyRecords, NativeRecords])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    """Returns a function that writes bytes to a file and reads its rows."""
    if request.param is NativeRecords and native is None:
        pytest.skip("gantrymq-native isn't there")
    change_constant(monkeypatch, "record_batches._RECORDS", request.param)
    change_constant(monkeypatch, "rows.CHUNK_BYTES", 1000)

    def read(data: bytes, end: int | None = None, **options: object) -> list[dict[str, object]]:
        path = tmp_path / "00000000000000000000"
        path.write_bytes(data)
        given = StoreOptions(path, **options)  # type: ignore[arg-type]
        part = LogRange(path, BASE, 0, len(data) if end is None else end)
        return [row for batch in read_range(part, given, COLUMNS) for row in batch.to_pylist()]

    return read


def log_of(*messages: tuple[str, bytes], flag: int = 0) -> bytes:
    log = b""
    for number, (topic, body) in enumerate(messages):
        at = BASE + len(log)
        tags = b"TAGS\x01t%d\x02" % number
        log += encode_record(0, 0, number, at, flag, 1, HOST, number, HOST, 0, 0, body, topic.encode(), tags)
    return log


MESSAGES = [("orders" if n % 3 else "other", b"%d" % n * (n % 70)) for n in range(100)]


def test_all_topics(read: Read) -> None:
    expected = [
        {"topic": topic, "queueOffset": n, "body": body, "tags": f"t{n}"} for n, (topic, body) in enumerate(MESSAGES)
    ]
    log = log_of(*MESSAGES)
    assert read(log) == expected
    # A blank record ends a file if the next record does not fit. Zeros follow it.
    blank = pack(">iI", 500, MAGIC_BLANK) + bytes(492)
    assert read(log + blank) == expected
    assert read(log + blank[:8]) == expected


def test_wanted_topics_and_times(read: Read) -> None:
    log = log_of(*MESSAGES)
    expected = [(n, body) for n, (topic, body) in enumerate(MESSAGES) if topic == "other"]
    assert [(row["queueOffset"], row["body"]) for row in read(log, topics=frozenset({"other"}))] == expected
    assert read(log, pattern="none") == []
    some = read(log, pattern="o.*r", starting_ms=10, ending_ms=20)
    assert [row["queueOffset"] for row in some] == [12, 15, 18]


def test_compressed_bodies(read: Read) -> None:
    bodies = [compress(b"%d" % n * 50, CompressionType.ZSTD) for n in range(30)]
    log = log_of(*(("orders", body) for body in bodies), flag=compression_flag(CompressionType.ZSTD))
    assert [row["body"] for row in read(log)] == [b"%d" % n * 50 for n in range(30)]


def test_a_record_longer_than_what_is_read_at_once(read: Read) -> None:
    log = log_of(("orders", b"a"), ("orders", b"x" * 5000), ("orders", b"b"))
    assert [row["body"] for row in read(log)] == [b"a", b"x" * 5000, b"b"]


@pytest.mark.parametrize("damage", ["size", "magic", "crc", "place", "length"])
def test_what_is_before_the_damage_is_read(read: Read, damage: str) -> None:
    records = [log_of(*MESSAGES[:n]) for n in (50, 51)]
    at = len(records[0])
    log = bytearray(log_of(*MESSAGES))
    where = {"size": at + 2, "magic": at + 5, "crc": at + 90, "place": at + 30, "length": at + 86}[damage]
    log[where] ^= 0x55
    with pytest.raises(StoreError, match=f"damaged at {at}"):
        read(bytes(log))
    found = read(bytes(log), fail_on_data_loss=False)
    assert [row["queueOffset"] for row in found] == list(range(50))


def test_a_part_that_ends_within_a_record(read: Read) -> None:
    log = log_of(*MESSAGES[:3])
    with pytest.raises(StoreError, match="which hold no record"):
        read(log, end=len(log) - 1)


def test_a_rotten_body_before_the_damage_is_a_row(read: Read) -> None:
    """The corrupt body is in the same chunk. It is read with corruptBodies or without the CRC check."""
    rotten, damaged = (len(log_of(*MESSAGES[:n])) for n in (3, 6))
    log = bytearray(log_of(*MESSAGES))
    log[rotten + 90] ^= 0x55
    log[damaged + 5] ^= 0x55
    lenient: list[dict[str, object]] = [{"corrupt_bodies": CorruptBodies.NULL}, {"check_crc": False}]
    for options in lenient:
        with pytest.raises(StoreError, match=f"damaged at {damaged}"):
            read(bytes(log), **options)
        found = read(bytes(log), fail_on_data_loss=False, **options)
        assert [row["queueOffset"] for row in found] == list(range(6))
        assert (found[3]["body"] is None) is ("corrupt_bodies" in options)
