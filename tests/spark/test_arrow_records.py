from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.arrow.arrow_records import ArrowRecords
from gantrymq.arrow.body_values import CorruptBodies
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.native_records import NativeRecords
from gantrymq.arrow.numpy_records import NumpyRecords
from gantrymq.arrow.record_batches import INFLATED_BYTES, record_batches
from gantrymq.errors import CompressionError, ProtocolError, RecordError
from gantrymq.kernels import native
from gantrymq.protocol.compression import CompressionType, compress, compression_flag
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import decode_records, encode_host, encode_record
from gantrymq.protocol.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

V4, V6 = encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 10911)
COLUMNS = list(ARROW_TYPES)
#: Runs a test with both implementations.
both = pytest.mark.parametrize(
    "kind",
    [
        NumpyRecords,
        pytest.param(NativeRecords, marks=pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")),
    ],
)


def record(
    body: bytes = b"body",
    properties: bytes = b"",
    *,
    offset: int = 0,
    born_v6: bool = False,
    store_v6: bool = False,
    compression: CompressionType | None = None,
    topic: bytes = b"orders",
    reconsume_times: int = 0,
    born_timestamp: int = 1_700_000_000_123,
) -> bytes:
    sys_flag = (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
    if compression is not None:
        body = compress(body, compression)
        sys_flag |= compression_flag(compression)
    return encode_record(
        3,
        7,
        offset,
        offset * 300,
        sys_flag,
        born_timestamp + offset,
        V6 if born_v6 else V4,
        1_700_000_000_456 + offset,
        V6 if store_v6 else V4,
        reconsume_times,
        0,
        body,
        topic,
        properties,
    )


def rows(kind: type[ArrowRecords], buffer: bytes, columns: list[str] = COLUMNS) -> list[dict[str, object]]:
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in columns])
    batches = list(record_batches(kind(buffer), schema, "orders", "broker-a", None, CorruptBodies.FAIL, check_crc=True))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


@both
@pytest.mark.parametrize("sign", [1, -1])
def test_born_times_beyond_sparks_are_its_last_and_first(kind: type[ArrowRecords], sign: int) -> None:
    buffer = record(born_timestamp=sign * (2**63 - 1))
    schema = pa.schema([("bornTimestamp", ARROW_TYPES["bornTimestamp"])])
    (batch,) = record_batches(kind(buffer), schema, "orders", "broker-a", None, CorruptBodies.FAIL, check_crc=True)
    (found,) = batch.column(0).cast(pa.int64()).to_pylist()
    assert found == sign * ((2**63 - 1) // 1000) * 1000


def check_against_messages(kind: type[ArrowRecords], buffer: bytes) -> None:
    """Checks that every column equals the output of the client's decoder for the same bytes."""
    messages = list(decode_messages(buffer))
    found = rows(kind, buffer)
    assert len(found) == len(messages)
    for row, message in zip(found, messages, strict=True):
        assert row["body"] == message.body
        assert row["queueId"] == message.queue_id
        assert row["queueOffset"] == message.queue_offset
        assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(message.born_timestamp, abs=0.01)
        assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(message.store_timestamp, abs=0.01)
        assert row["reconsumeTimes"] == message.reconsume_times
        assert row["msgId"] == message.msg_id
        assert row["tags"] == message.tags
        assert row["keys"] == message.properties.get("KEYS")
        assert dict(row["properties"]) == message.properties
        assert len(row["properties"]) == len(message.properties)
        assert (row["topic"], row["brokerName"]) == ("orders", "broker-a")


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "AGS", "KEYS2", "größe"])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20)
#: Well formed, without the last separator, with repeated names, or arbitrary text.
PROPERTIES = st.one_of(
    st.dictionaries(NAMES, VALUES, max_size=5).map(encode_properties),
    st.dictionaries(NAMES, VALUES, max_size=5).map(lambda p: encode_properties(p)[:-1]),
    st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3).map(encode_properties), max_size=9).map(b"".join),
    st.lists(st.sampled_from(["\x01", "\x02", "KEYS", "TAGS", "x"]), max_size=12).map(lambda p: "".join(p).encode()),
)
RECORDS = st.builds(
    record,
    st.binary(max_size=200),
    PROPERTIES,
    offset=st.integers(0, 2**40),
    born_v6=st.booleans(),
    store_v6=st.booleans(),
    compression=st.sampled_from([None, None, *CompressionType]),
    topic=st.sampled_from([b"orders", b"t" * 127, b"t" * 200]),
    reconsume_times=st.integers(0, 20),
)


@both
@given(st.lists(RECORDS, max_size=6).map(b"".join))
@settings(max_examples=300, deadline=None)
def test_columns_equal_what_the_client_decodes(kind: type[ArrowRecords], buffer: bytes) -> None:
    check_against_messages(kind, buffer)


@both
@given(st.lists(RECORDS, min_size=1, max_size=3).map(b"".join), st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_bytes_are_refused_wherever_the_client_refuses_them(
    kind: type[ArrowRecords], buffer: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(buffer) - 1))
    damaged = bytearray(buffer)
    damaged[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(1, len(damaged)))]
    try:
        expected: int | None = len(list(decode_records(bytes(damaged))))
    except RecordError:
        expected = None
    if expected is None:
        with pytest.raises(RecordError):
            kind(bytes(damaged))
    else:
        assert len(kind(bytes(damaged))) == expected


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
@given(st.lists(RECORDS | st.builds(record, properties=st.binary(max_size=60)), max_size=9).map(b"".join), st.data())
@settings(max_examples=400, deadline=None)
def test_both_make_the_same_of_any_bytes(buffer: bytes, data: st.DataObject) -> None:
    damaged = bytearray(buffer)
    for _ in range(data.draw(st.integers(0, 2)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert run_all(NumpyRecords, bytes(damaged)) == run_all(NativeRecords, bytes(damaged))


def run_all(kind: type[ArrowRecords], buffer: bytes) -> list[object] | None:
    """Returns all columns and errors of a buffer, or None if it does not consist of records."""
    try:
        records = kind(buffer, check_crc=False)
    except RecordError:
        return None
    wanted = [name for name in COLUMNS if not name.startswith("body")]
    arrays = [*records.columns([*wanted, "a"], None, None), records.topics(), records.stored_bodies()]
    bodies, problems = records.bodies(np.arange(len(records)), INFLATED_BYTES)
    arrays.append(bodies)
    for array in arrays:
        array.validate(full=True)
    numbers = [records.has_wrong_crc(), records.starts, records.physical_offsets]
    return [*arrays, problems, *(column.tolist() for column in numbers)]


PACKED = [compress(b"name=value;" * n, kind) for n in (0, 1, 20, 9000) for kind in CompressionType]


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
@given(st.lists(st.sampled_from(PACKED), min_size=1, max_size=3), st.sampled_from([0, *CompressionType]), st.data())
@settings(max_examples=1000, deadline=None)
def test_both_inflate_the_same_of_any_bytes(packed: list[bytes], number: int, data: st.DataObject) -> None:
    # A frame followed by other bytes, which may be another frame.
    damaged = bytearray(b"".join(packed))
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, min(len(damaged) - 1, 40)))] = data.draw(st.integers(0, 255))
    body = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    buffer = encode_record(0, 0, 0, 0, COMPRESSED | number << 8, 0, V4, 0, V4, 0, 0, body, b"orders", b"")
    assert run_all(NumpyRecords, buffer) == run_all(NativeRecords, buffer)


@both
def test_every_truncation_is_refused(kind: type[ArrowRecords]) -> None:
    buffer = b"".join(record(b"x" * 40, encode_properties({"TAGS": "a"}), offset=i) for i in range(3))
    whole = {0, len(buffer) // 3, 2 * len(buffer) // 3}
    for end in set(range(len(buffer))) - whole:
        with pytest.raises(RecordError):
            kind(buffer[:end])


@both
def test_another_body_has_another_crc(kind: type[ArrowRecords]) -> None:
    buffer = bytearray(record(b"amount=100") + record(b"amount=200"))
    at = buffer.index(b"amount=200")
    buffer[at + 7] = ord("9")
    with pytest.raises(RecordError, match="CRC32"):
        kind(bytes(buffer))
    assert kind(bytes(buffer), check_crc=False).body(1) == b"amount=900"


@both
def test_a_compressed_body_that_does_not_decompress_is_refused(kind: type[ArrowRecords]) -> None:
    whole = record(b"x" * 500, compression=CompressionType.ZLIB)
    body = next(iter(decode_records(whole))).body
    broken = encode_record(
        0, 0, 0, 0, compression_flag(CompressionType.ZLIB), 0, V4, 0, V4, 0, 0, body[:-8], b"orders", b""
    )
    with pytest.raises(CompressionError, match=r"offset 0 of queue 0: .*corruptBodies"):
        rows(kind, broken)


@both
def test_corrupt_bodies_are_null_between_good_ones(kind: type[ArrowRecords]) -> None:
    packed = record(b"x" * 500, compression=CompressionType.ZLIB)
    body = next(iter(decode_records(packed))).body
    flag = compression_flag(CompressionType.ZLIB)
    broken = encode_record(0, 7, 2, 0, flag, 0, V4, 0, V4, 0, 0, body[:-8], b"orders", b"")
    wrong_crc = bytearray(record(b"amount=200", offset=3))
    wrong_crc[wrong_crc.index(b"amount=200") + 7] = ord("9")
    buffer = record(b"a", offset=0) + packed + broken + bytes(wrong_crc) + record(b"b", offset=4)
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in ("queueOffset", "body", "bodyError")])
    records = kind(buffer, check_crc=False)
    wanted = pa.array([True, True, True, True, False])
    (batch,) = record_batches(records, schema, "t", "b", wanted, CorruptBodies.NULL, check_crc=True)
    found = batch.to_pylist()
    assert [row["body"] for row in found] == [b"a", b"x" * 500, None, None]
    assert [row["bodyError"] and row["bodyError"][-21:] for row in found[:2]] == [None, None]
    assert "cut off" in found[2]["bodyError"]
    assert "CRC32" in found[3]["bodyError"]


@both
def test_bodies_that_inflate_to_gigabytes_come_in_bounded_batches(kind: type[ArrowRecords]) -> None:
    bomb = record(bytes(8 * 1024 * 1024), compression=CompressionType.ZSTD)
    buffer = bomb * 300
    assert len(buffer) < 1024 * 1024
    schema = pa.schema([("queueId", ARROW_TYPES["queueId"]), ("body", ARROW_TYPES["body"])])
    count = 0
    for batch in record_batches(kind(buffer), schema, "t", "b", None, CorruptBodies.FAIL, check_crc=True):
        assert batch.nbytes < INFLATED_BYTES + 8 * 1024 * 1024
        count += batch.num_rows
    assert count == 300


@both
def test_bytes_that_are_not_utf_8_are_replaced(kind: type[ArrowRecords]) -> None:
    (row,) = rows(kind, record(properties=b"TAGS\x01a\xff\x02KEYS\x01ok\x02"))
    assert row["tags"] == "a�"
    assert dict(row["properties"]) == {"TAGS": "a�", "KEYS": "ok"}


@both
@pytest.mark.parametrize("others", [1, 40])
def test_of_a_name_that_comes_again_the_last_one_counts(kind: type[ArrowRecords], others: int) -> None:
    """Repeated names occur if a broker adds its properties to those of another broker."""
    more = [(f"n{n}", str(n)) for n in range(others)]
    given = [("MSG_REGION", "old"), *more, ("MSG_REGION", "new"), ("n0", "last")]
    again = b"".join(b"%b\x01%b\x02" % (name.encode(), value.encode()) for name, value in given)
    once = encode_properties({"MSG_REGION": "once", "n0": "also"})
    found = [row["properties"] for row in rows(kind, record(properties=once) + record(properties=again) + record())]
    assert found == [[("MSG_REGION", "once"), ("n0", "also")], [*more[1:], *given[-2:]], []]


@both
def test_names_that_are_the_same_as_texts_are_one(kind: type[ArrowRecords]) -> None:
    (row,) = rows(kind, record(properties=b"a\xff\x011\x02b\x012\x02a\xfe\x013\x02"))
    assert row["properties"] == [("b", "2"), ("a\N{REPLACEMENT CHARACTER}", "3")]


@both
def test_a_message_without_unique_key_has_its_place_as_id(kind: type[ArrowRecords]) -> None:
    buffer = record(properties=encode_properties({"UNIQ_KEY": "U1"})) + record(offset=5, store_v6=True)
    assert [row["msgId"] for row in rows(kind, buffer)] == [m.msg_id for m in decode_messages(buffer)]


@both
def test_no_records_are_no_rows(kind: type[ArrowRecords]) -> None:
    assert rows(kind, b"") == []


@both
def test_only_what_is_asked_for(kind: type[ArrowRecords]) -> None:
    assert rows(kind, record(b"x"), ["body", "queueOffset"]) == [{"body": b"x", "queueOffset": 0}]


@both
def test_properties_as_columns(kind: type[ArrowRecords]) -> None:
    schema = pa.schema([("retries", pa.string()), ("body", pa.binary()), ("country", pa.string())])
    properties = [{"country": "at", "retries": "3"}, {"country": "größe"}, {}]
    buffer = b"".join(record(b"%d" % n, encode_properties(given)) for n, given in enumerate(properties))
    (batch,) = record_batches(kind(buffer), schema, "t", "b", None, CorruptBodies.FAIL, check_crc=True)
    assert batch.to_pydict() == {
        "retries": ["3", None, None],
        "body": [b"0", b"1", b"2"],
        "country": ["at", "größe", None],
    }


@both
def test_records_that_are_none_are_protocol_errors(kind: type[ArrowRecords]) -> None:
    with pytest.raises(ProtocolError):
        kind(b"\x00" * 200)
