"""Native code and Python create the same queue units from a log, whatever the log contains."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import use_python

from gantrymq.kernels import native
from gantrymq.protocol.record import Record, encode_host, encode_record, pack_blank
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store import log_reader
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.delay_level import tags_code_of
from gantrymq.store.log_reader import LogReader
from gantrymq.store.record_crc import fill_crc, reserve_crc

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

HOSTS = {0: encode_host("10.1.2.3", 10911), 1: encode_host("2001:db8::7", 10911)}
FLAGS = [
    0,
    0,
    0,
    1,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BORN_HOST_V6,
    STORE_HOST_V6,
    BORN_HOST_V6 | STORE_HOST_V6,
]
TOPICS = [b"orders", b"orders", b"Nut", b"t" * 200, b"\xff", SCHEDULE_TOPIC.encode()]
ITEMS = st.sampled_from(
    [b"TAGS\x01", b"a", "\xe4\U0001f600".encode(), b"\xff", b"\x01", b"\x02", b"\x02TAGS\x01b\x02", b"\0"]
)
BASE = 1 << 20

MESSAGES = st.tuples(
    st.sampled_from(TOPICS),
    st.integers(0, 1),
    st.sampled_from(FLAGS),
    st.binary(max_size=20),
    st.lists(ITEMS, max_size=4).map(b"".join),
    st.sampled_from([None, None, None, "right", "wrong"]),
    # Difference between the queue offset and the next offset of the queue.
    st.sampled_from([0] * 12 + [1, -1, 1 << 40]),
)


def log_of(messages: list[Any]) -> bytearray:
    log = bytearray()
    offsets: dict[tuple[bytes, int], int] = defaultdict(int)
    for topic, queue_id, flags, body, properties, crc, more in messages:
        if crc:
            properties = reserve_crc(properties)
        record = encode_record(
            queue_id,
            0,
            offsets[topic, queue_id] + more,
            BASE + len(log),
            flags,
            1,
            HOSTS[bool(flags & BORN_HOST_V6)],
            1_700_000_000_000 + len(log) * (-1) ** len(body),
            HOSTS[bool(flags & STORE_HOST_V6)],
            0,
            0,
            body,
            topic,
            properties,
        )
        offsets[topic, queue_id] += not flags & TRANSACTION_PREPARED
        log += fill_crc(record) if crc == "right" else record
    return log


class Log:
    """The interface of a log that the reader needs, with the whole content in one file."""

    def __init__(self, content: bytes) -> None:
        self._view = memoryview(content)

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        return (self._view, BASE) if physical_offset < BASE + len(self._view) else None

    def file_at(self, physical_offset: int) -> object | None:
        return None


def unit_of(record: Record) -> bytes:
    return UNIT.pack(record.physical_offset, record.size, tags_code_of(record, [1000]))


def read(log: Log, *, needs_crc: bool) -> tuple[dict[tuple[bytes, int], list[tuple[int, bytes]]], int, int, int, str]:
    """Reads the log.

    Returns {queue: [(queue offset, unit)]}, the number of records, their end, the latest timestamp, and the error.
    """
    units: dict[tuple[bytes, int], list[tuple[int, bytes]]] = defaultdict(list)
    count = latest = 0
    reader = LogReader(log, BASE, needs_crc=needs_crc)
    records = iter(reader)
    while True:
        if (runs := reader.runs()) is not None:
            count += runs.records
            latest = max(latest, runs.max_timestamp)
            for run in runs.runs:
                for at in range(0, len(run.units), UNIT.size):
                    units[run.topic, run.queue_id].append((run.first + at // UNIT.size, run.units[at : at + UNIT.size]))
        elif (record := next(records, None)) is not None:
            count += 1
            latest = max(latest, record.store_timestamp)
            if not record.sys_flag & TRANSACTION_PREPARED:
                units[record.topic, record.queue_id].append((record.queue_offset, unit_of(record)))
        else:
            return units, count, reader.end, latest, reader.problem


@given(st.lists(MESSAGES, max_size=10), st.booleans(), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_both_read_the_same(messages: list[Any], needs_crc: bool, ends_with_blank: bool, data: st.DataObject) -> None:
    content = log_of(messages)
    for _ in range(data.draw(st.integers(0, 2)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else len(content) :]
    if ends_with_blank:
        content += bytes(40)
        pack_blank(content, len(content) - 40, 40)
    log = Log(bytes(content))
    found = read(log, needs_crc=needs_crc)
    with pytest.MonkeyPatch.context() as patch:
        use_python(patch, log_reader)
        assert found == read(log, needs_crc=needs_crc)


def test_most_records_are_read_at_once() -> None:
    content = log_of([(b"orders", n % 2, 4 * (n == 5), b"x", b"TAGS\x01b\x02", "right", 0) for n in range(100)])
    reader = LogReader(Log(bytes(content)), BASE, needs_crc=True)
    runs = reader.runs()
    assert runs is not None
    assert (runs.records, [(run.topic, run.queue_id, len(run.units)) for run in runs.runs]) == (
        100,
        [(b"orders", 0, 50 * 20), (b"orders", 1, 49 * 20)],
    )
    assert reader.end == BASE + len(content)
    assert reader.runs() is None


def test_places_outside_are_refused() -> None:
    assert native is not None
    with pytest.raises(ValueError, match="ends earlier"):
        native.unit_runs(b"12", 0, 3, 0, 1, False, b"")
    assert native.unit_runs(b"12", 7, 2, 0, 1, False, b"") == ([], 0, 7, 0, 0)
    with pytest.raises(OverflowError):
        native.unit_runs(b"12", -1, 2, 0, 1, False, b"")
