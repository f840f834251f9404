"""Tests that native code and Python build the same index, byte by byte, from any log."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import use_python

from gantrymq.kernels import native
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.protocol.sys_flag import STORE_HOST_V6, TRANSACTION_ROLLBACK
from gantrymq.store import index_entries
from gantrymq.store.index_keys import LEFT_OUT
from gantrymq.store.message_index import MessageIndex, index_paths

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

MAX_LONG = (1 << 63) - 1
HOST, HOST_V6 = encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 10911)
TEXTS = st.text("ab \x01#Tä\U0001f600", max_size=6).map(str.encode) | st.binary(max_size=4)
ITEMS = st.tuples(st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"KEY", b""]), TEXTS).map(b"\x01".join)
PROPERTIES = st.tuples(
    st.lists(ITEMS, max_size=5).map(b"\x02".join), st.sampled_from([b"", b"\x02", LEFT_OUT[1], b"\x02" + LEFT_OUT[1]])
).map(b"".join)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    is_v6 = draw(st.booleans())
    return encode_record(
        0,
        0,
        0,
        0,
        draw(st.sampled_from([0, TRANSACTION_ROLLBACK])) | (STORE_HOST_V6 if is_v6 else 0),
        0,
        HOST,
        draw(st.sampled_from([0, 999, 1_700_000_000_000, 1_700_000_001_999, (1 << 63) - 1])),
        HOST_V6 if is_v6 else HOST,
        0,
        0,
        b"body",
        draw(st.sampled_from([b"orders", b"\xff", b"t" * 200, LEFT_OUT[0]])),
        draw(PROPERTIES),
    )


class Log:
    """The part of a commit log that the index needs, with a single file."""

    file_size = 1 << 20
    min_offset = 0

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = len(content)

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        return memoryview(self.content), 0


class Rooms:
    """Preallocates synchronously."""

    def need(self, make) -> None:
        make()

    ask = need

    def forget(self, make) -> None:
        pass


def built(log: Log, directory: Path, slots: int, entries: int) -> list[bytes]:
    """Builds the index and returns the contents of its files."""
    index = MessageIndex(log, directory, slots, entries, Rooms())  # type: ignore[arg-type]
    index.open(0, was_aborted=False)
    try:
        for _ in range(1000):
            if index.build(0):
                break
        else:
            raise AssertionError(f"it stays at {index.position} of {log.position}")
    finally:
        index.close(flush=False)
    return [path.read_bytes() for path in index_paths(directory)]


@given(st.lists(records(), min_size=1, max_size=8), st.integers(1, 5), st.integers(2, 12), st.data())
@settings(max_examples=150, deadline=None)
def test_both_build_the_same_index(some: list[bytes], slots: int, entries: int, data: st.DataObject) -> None:
    content = bytearray(b"".join(some))
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    log = Log(bytes(content))
    with tempfile.TemporaryDirectory() as native_files, tempfile.TemporaryDirectory() as python_files:
        by_native = built(log, Path(native_files), slots, entries)
        with pytest.MonkeyPatch.context() as patch:
            use_python(patch, index_entries)
            by_python = built(log, Path(python_files), slots, entries)
    assert by_native == by_python


def test_a_log_that_ends_beyond_the_largest_offset_is_refused() -> None:
    assert native is not None
    record = encode_record(0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, b"", b"orders", b"KEYS\x01a b\x02")
    log = 2 * record
    last = MAX_LONG - len(log)
    entries, _, following = native.index_entries(log, 0, len(log), last, 9, 9, 99, LEFT_OUT)
    assert [entry[1] for entry in entries] == [last, last, last + len(record), last + len(record)]
    assert following == len(log)
    for base in (last + 1, MAX_LONG):
        with pytest.raises(ValueError, match="largest physical offset"):
            native.index_entries(log, 0, len(log), base, 9, 9, 99, LEFT_OUT)
    entries, *places = native.index_entries(log, 2 * MAX_LONG, len(log), 0, 9, 9, 99, LEFT_OUT)
    assert (len(entries), places) == (0, [2 * MAX_LONG, 2 * MAX_LONG])


def test_places_outside_are_refused() -> None:
    assert native is not None
    with pytest.raises(ValueError, match="ends earlier"):
        native.index_entries(b"12", 0, 3, 0, 1, 1, 1, LEFT_OUT)
    entries, last, following = native.index_entries(b"12", 7, 2, 0, 1, 1, 1, LEFT_OUT)
    assert (len(entries), last, following) == (0, 7, 7)
    record = encode_record(0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, b"", b"orders", b"KEYS\x01a b\x02")
    entries, _, following = native.index_entries(record, 0, len(record), 0, 1, 9, 9, LEFT_OUT)
    assert (len(entries), following) == (2, len(record))
    for first, count, size, slots, number in [
        (0, 3, 100, 2, 1),
        (3, 1, 100, 2, 1),
        (0, 1, 67, 2, 1),
        (0, 1, 100, 0, 1),
    ]:
        with pytest.raises(IndexError):
            entries.put(first, count, bytearray(size), slots, number, 0)
    for slots in (MAX_LONG // 4, MAX_LONG, 2 * MAX_LONG + 1):
        with pytest.raises(IndexError):
            entries.put(0, 1, bytearray(100), slots, 1, 0)
    with pytest.raises(ValueError, match="written"):
        entries.put(0, 1, bytes(100), 2, 1, 0)
    with pytest.raises(IndexError):
        entries.put(0, 1, bytearray(100), 2, -1, 0)
