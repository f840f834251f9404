"""Tests that native code and Python create the same records from any batch."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import use_python

from gantrymq.errors import BodyError
from gantrymq.kernels import native
from gantrymq.protocol.batch import decode_batch, encode_batch
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import encode_host
from gantrymq.store import record_batch
from gantrymq.store.record_batch import RecordBatch

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

SPECIAL = b"POP_CK\x01"
HOSTS = st.sampled_from([encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 10911)])
PROPERTIES = st.lists(st.sampled_from([b"TAGS\x01", b"a", "ä\U0001f600".encode(), b"\xff", b"\x01", b"\x02"])).map(
    b"".join
)
MESSAGES = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=30),
    st.one_of(PROPERTIES, PROPERTIES.map(lambda p: p + b"\x02" + SPECIAL)),
)


def new_batch(topic: str, born_host: bytes, store_host: bytes, born_ms: int = 1_700_000_000_123) -> RecordBatch:
    queue: Any = SimpleNamespace(queue_id=3, topic=topic, topic_bytes=topic.encode(), max_offset=77)
    return RecordBatch(queue, 0x5A, born_ms, born_host, store_host, 2, with_crc=False)


def by_python(batch: RecordBatch, messages: bytes) -> int:
    """Decodes with Python and returns the position of the first message that native code leaves to Python."""
    at = 0
    try:
        for flag, body, properties in decode_batch(messages):
            if SPECIAL in properties:
                break
            batch.add(flag, body, properties, tags_code(find_property(properties, b"TAGS") or b""))
            at += 22 + len(body) + len(properties)
    except BodyError:
        pass
    return at


def damaged(messages: list[tuple[int, bytes, bytes]], data: st.DataObject) -> bytes:
    """Returns a batch body that may be damaged or cut."""
    content = bytearray(encode_batch(messages))
    for _ in range(data.draw(st.integers(0, 2)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else len(content) :]
    return bytes(content)


@given(st.lists(MESSAGES, max_size=6), st.sampled_from(["T", "t" * 127, "t" * 128]), HOSTS, HOSTS, st.data())
@settings(max_examples=300, deadline=None)
def test_both_make_the_same_records(
    messages: list[tuple[int, bytes, bytes]], topic: str, born_host: bytes, store_host: bytes, data: st.DataObject
) -> None:
    content = damaged(messages, data)
    expected, found = new_batch(topic, born_host, store_host), new_batch(topic, born_host, store_host)
    end = by_python(expected, content)
    # In pieces, as a broker does it.
    at, before = 0, -1
    while at > before:
        before, at = at, found.add_messages(content, at, 2, SPECIAL)
    assert (at, found.records, found.sizes, found.tags_codes) == (
        end,
        expected.records,
        expected.sizes,
        expected.tags_codes,
    )
    if found.records:
        now = data.draw(st.integers(0, 2**63 - 1))
        placed = record_batch.place_records(found, 4096, now)
        with pytest.MonkeyPatch.context() as patch:
            use_python(patch, record_batch)
            assert placed == record_batch.place_records(found, 4096, now)


@given(st.lists(MESSAGES, max_size=6), st.data())
@settings(max_examples=300, deadline=None)
def test_plain_sends_store_all_of_a_batch_or_nothing(
    messages: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    """Native code stores the same records as Python, or nothing.

    It stores nothing if the body is not a batch or if a message needs Python.
    """
    assert native is not None
    content = damaged(messages, data)
    host = encode_host("10.1.2.3", 10911)
    queue: Any = SimpleNamespace(
        mapping=bytearray(300), position=20, limit=300, max_offset=77, queue_id=3, topic="T", topic_bytes=b"T"
    )
    written: list[bytes] = []
    log = SimpleNamespace(position=4200, limit=7096, store_timestamp=0, write=written.append)
    parts = b"0A", (b"", b""), (b"", b" ", b" ", b" ", b"")
    sends = native.PlainSends([], SPECIAL, b"", host, (1 << 20, 5, 1 << 20), *parts, (b"KEY\x01", [100]))
    assert sends.handle(request(b""), log, 456, host)[4]
    assert sends.allow(7, 1_700_000_000_123, b"", b"T", 3, 0x4A, 0, True, 320, queue)
    expected = RecordBatch(queue, 0x4A, 1_700_000_000_123, host, host, 0, with_crc=False)
    is_whole = by_python(expected, content) == len(content) and 0 < len(expected) <= 5
    records, units, places = record_batch.place_records(expected, 4200, 456)
    answers, requests, dealt, queues, is_asking = sends.handle(request(content), log, 456, host)
    assert not is_asking
    if is_whole:
        ids = b",".join(b"0A%016X" % place for place in places)
        assert (answers[8:], requests, dealt, queues) == (ids + b" 3 77 7", [(320, 1)], len(request(content)), [queue])
        assert written == [bytes(records)]
        sizes = [0, len(expected)] if len(records) // len(expected) > 100 else [len(expected), 0]
        assert sends.take_counts() == [(b"T", False, len(bytes(records)), sizes)]
        assert sends.take_counts() == []
        assert queue.mapping == bytes(20) + units + bytes(280 - len(units))
        assert (log.position, queue.max_offset) == (4200 + len(bytes(records)), 77 + len(expected))
    else:
        assert (answers, requests, dealt, queues) == (b"", [], 0, [])
        assert sends.take_counts() == []
        assert not written
        assert not any(queue.mapping)


def request(body: bytes) -> bytes:
    header = b'{"code":320,"extFields":{"g":"1700000000123","i":""},"opaque":7}'
    return pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def test_a_number_that_does_not_fit_is_for_python_to_refuse() -> None:
    batch = new_batch("T", bytes(8), bytes(8), born_ms=1 << 63)
    assert batch.add_messages(encode_batch([(0, b"x", b"")]), 0, 10, SPECIAL) == 0


def test_what_is_no_record_is_refused() -> None:
    assert native is not None
    for records, codes, at in [([b"x" * 90], [], 56), ([b"x" * 35], [0], 0), ([b"x" * 90], [0], 83)]:
        with pytest.raises(ValueError, match="no records"):
            native.placed_records(records, codes, 0, 0, 0, at)
    for at in (2**64, -1):
        with pytest.raises(OverflowError):
            native.placed_records([b"x" * 90], [0], 0, 0, 0, at)
