"""Tests of message records of both versions with IPv4 and IPv6 hosts, of batches, and of decoded messages."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import BodyError, CompressionError, ProtocolError, RecordError
from gantrymq.protocol.batch import decode_batch, encode_batch
from gantrymq.protocol.compression import CompressionType, compress, compression_flag
from gantrymq.protocol.message import Message, MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import (
    BLANK_SIZE,
    BODY_AT_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Record,
    decode_host,
    decode_record,
    decode_records,
    decode_without_body,
    encode_host,
    encode_record,
    offset_of,
    pack_blank,
    store_timestamp_at,
    unpacker,
)
from gantrymq.protocol.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, TRANSACTION_PREPARED

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
V4 = b"\x0a\x01\x02\x03\x00\x00\x2a\x9f"


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, object]:
    """Returns random arguments for encode_record."""
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = draw(st.sampled_from([0, TRANSACTION_PREPARED, 3 << 8]))
    return {
        "queue_id": draw(INT32),
        "flag": draw(INT32),
        "queue_offset": draw(INT64),
        "physical_offset": draw(INT64),
        "sys_flag": flags | (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0),
        "born_timestamp": draw(INT64),
        "born_host": draw(st.binary(min_size=20, max_size=20) if born_v6 else st.binary(min_size=8, max_size=8)),
        "store_timestamp": draw(INT64),
        "store_host": draw(st.binary(min_size=20, max_size=20) if store_v6 else st.binary(min_size=8, max_size=8)),
        "reconsume_times": draw(INT32),
        "prepared_transaction_offset": draw(INT64),
        "body": draw(st.binary(max_size=60)),
        "topic": draw(st.binary(max_size=200)),
        "properties": draw(st.binary(max_size=60)),
    }


def plain(body: bytes = b"body", topic: bytes = b"topic", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    return encode_record(1, 2, 3, 4, sys_flag, 5, V4, 6, V4, 0, 0, body, topic, properties)


@given(arguments(), st.binary(max_size=9), st.sampled_from([bytes, bytearray, memoryview]))
def test_round_trip(fields: dict[str, object], before: bytes, buffer_type: type[bytes]) -> None:
    encoded = encode_record(**fields)  # type: ignore[arg-type]
    record = decode_record(buffer_type(before + encoded + b"next"), len(before))

    assert record.size == len(encoded)
    assert {name: getattr(record, name) for name in fields} == fields
    assert isinstance(record, Record)
    assert decode_without_body(buffer_type(before + encoded + b"next"), len(before)) == record._replace(body=b"")
    assert all(type(value) in (int, bytes) for value in record)
    magic = int.from_bytes(encoded[4:8], "big")
    assert magic == (MAGIC_V2 if len(record.topic) > 127 else MAGIC_V1)


@given(arguments(), st.data())
def test_cut_and_changed_records_are_record_errors_or_other_records(
    fields: dict[str, object], data: st.DataObject
) -> None:
    encoded = encode_record(**fields)  # type: ignore[arg-type]
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(RecordError):
        decode_record(encoded[:cut])
    with pytest.raises(RecordError):
        decode_without_body(encoded[:cut])
    changed = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordError):
        assert decode_record(bytes(changed)).size == len(encoded)


@given(st.binary(max_size=150), st.integers(0, 10))
def test_any_bytes(data: bytes, pos: int) -> None:
    with suppress(RecordError):
        decode_record(data, pos)


@given(arguments(), st.data())
def test_a_changed_body_has_another_crc(fields: dict[str, object], data: st.DataObject) -> None:
    fields["body"] = b"some body"
    encoded = encode_record(**fields)  # type: ignore[arg-type]
    at = encoded.index(b"some body") + data.draw(st.integers(0, 8))
    changed = encoded[:at] + bytes([encoded[at] ^ (1 << data.draw(st.integers(0, 7)))]) + encoded[at + 1 :]

    with pytest.raises(RecordError, match="CRC"):
        decode_record(changed)
    assert decode_record(changed, check_crc=False).body != b"some body"
    assert decode_without_body(changed).properties == fields["properties"]


def test_places_of_fields() -> None:
    """The positions are those that `CommitLog.checkMessageAndReturnSize` reads."""
    encoded = plain(b"body", b"topic", b"a\x01b\x02")
    places = {"queue_id": 12, "queue_offset": 20, "physical_offset": 28, "sys_flag": 36, "born_timestamp": 40}
    for field, place in {**places, "store_timestamp": 56, "body_length": 84}.items():
        assert offset_of(field) == place
    assert BODY_AT_V4 == 88
    assert encoded[BODY_AT_V4 : BODY_AT_V4 + 4] == b"body"
    assert unpacker("size", "queue_offset")(b"xy" + encoded, 2) == (len(encoded), 3)
    assert unpacker("magic", "queue_id", "physical_offset", "body_length")(encoded) == (MAGIC_V1, 1, 4, 4)
    # The data needs to contain only the requested fields.
    assert unpacker("size", "magic")(encoded[:8]) == (len(encoded), MAGIC_V1)


@given(arguments(), st.binary(max_size=9))
def test_store_timestamp(fields: dict[str, object], before: bytes) -> None:
    encoded = before + encode_record(**fields)  # type: ignore[arg-type]

    assert store_timestamp_at(encoded, len(before)) == fields["store_timestamp"]
    assert store_timestamp_at(encoded[: len(before) + 75], len(before)) == -1
    assert store_timestamp_at(bytes(100), 0) == -1


def test_blank() -> None:
    buffer = bytearray(20)
    pack_blank(buffer, 4, 1000)

    assert buffer == bytes(4) + (1000).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(8)
    assert unpacker("size", "magic")(buffer, 4) == (1000, MAGIC_BLANK)
    assert BLANK_SIZE == 8


def test_records_one_after_the_other() -> None:
    records = [plain(b"a"), plain(b"b" * 99), plain(topic=b"t" * 200)]

    assert [r.body for r in decode_records(b"".join(records))] == [b"a", b"b" * 99, b"body"]
    with pytest.raises(RecordError):
        list(decode_records(b"".join(records)[:-1]))
    assert list(decode_records(b"")) == []


@pytest.mark.parametrize(
    ("ip", "port", "text"),
    [
        ("10.1.2.3", 10911, "10.1.2.3:10911"),
        ("::1", 0, "[::1]:0"),
        ("fe80::1%eth0", 65535, "[fe80::1]:65535"),
    ],
)
def test_hosts(ip: str, port: int, text: str) -> None:
    assert decode_host(encode_host(ip, port)) == text


# -- batches --------------------------------------------------------------------------------------------------------

BATCHES = st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=50)), max_size=5)


@given(BATCHES)
def test_batches_come_back(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert list(decode_batch(encode_batch(messages))) == messages


@given(BATCHES.filter(bool), st.data())
def test_cut_and_changed_batches(messages: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    encoded = bytearray(encode_batch(messages))
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BodyError):
        list(decode_batch(bytes(encoded[: data.draw(st.integers(0, len(encoded)))])))
    last = len(encode_batch(messages[-1:]))
    with pytest.raises(BodyError):
        list(decode_batch(encode_batch(messages)[: -data.draw(st.integers(1, last - 1))]))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_a_body_error(data: bytes) -> None:
    with suppress(BodyError):
        list(decode_batch(data))


@pytest.mark.parametrize("size", [0, -1, 21, 2**31 - 1])
def test_sizes_that_would_stand_still_or_leave_the_batch(size: int) -> None:
    with pytest.raises(BodyError):
        list(decode_batch(size.to_bytes(4, "big", signed=True) + bytes(18)))


def test_properties_too_long_for_a_batch() -> None:
    with pytest.raises(BodyError, match="32767"):
        encode_batch([(0, b"", b"x" * 32768)])


# -- messages -------------------------------------------------------------------------------------------------------


def test_message_ext() -> None:
    properties = {"UNIQ_KEY": "0123", "TAGS": "a", "KEYS": "k1 k2"}
    (message,) = decode_messages(plain(properties=encode_properties(properties)), "broker-a")

    assert isinstance(message, MessageExt)
    assert (message.topic, message.body, message.flag, message.tags) == ("topic", b"body", 2, "a")
    assert (message.keys, message.properties) == (["k1", "k2"], properties)
    assert message.message_queue == MessageQueue("topic", "broker-a", 1)
    assert (message.queue_offset, message.commit_log_offset) == (3, 4)
    assert (message.born_timestamp, message.store_timestamp) == (5, 6)
    assert (message.born_host, message.store_host) == ("10.1.2.3:10911", "10.1.2.3:10911")
    assert message.offset_msg_id == "0A01020300002A9F0000000000000004"
    assert message.msg_id == "0123"


def test_a_message_without_unique_key_has_its_place_for_an_id() -> None:
    (message,) = decode_messages(plain())
    assert message.msg_id == message.offset_msg_id


@pytest.mark.parametrize("compression", CompressionType)
def test_compressed_messages_are_plain_to_their_reader(compression: CompressionType) -> None:
    body = b"again and again " * 50
    (message,) = decode_messages(plain(compress(body, compression), sys_flag=compression_flag(compression)))

    assert message.body == body
    assert not message.sys_flag & COMPRESSED


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (plain(topic=b"\xff\xfe"), RecordError),
        (plain()[:-1], RecordError),
    ],
)
def test_unreadable_messages(record: bytes, error: type[ProtocolError]) -> None:
    with pytest.raises(error):
        list(decode_messages(record))


def test_a_body_is_decompressed_when_it_is_read() -> None:
    (message,) = decode_messages(plain(b"not compressed", sys_flag=COMPRESSED), "broker-a")
    assert message.stored_body == b"not compressed"
    assert not message.is_undecodable
    for _ in range(2):
        with pytest.raises(CompressionError, match="on broker-a: body of 14 bytes doesn't decompress"):
            _ = message.body
    assert message.is_undecodable
    assert not message.is_damaged
    assert "14 compressed" in repr(message)
    message.body = b"mine"
    assert message.body == b"mine"


def test_a_message_to_send() -> None:
    message = Message(
        "topic", b"body", tags="a", keys=["k1", "k2"], sharding_key="s", delay_level=3, properties={"colour": "red"}
    )
    assert message.properties == {
        "colour": "red",
        "TAGS": "a",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "s",
        "DELAY": "3",
    }
    assert (message.tags, message.keys) == ("a", ["k1", "k2"])
