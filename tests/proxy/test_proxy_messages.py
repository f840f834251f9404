"""Conversion of messages from brokers to gRPC clients and back."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import CompressionError
from gantrymq.protocol.compression import CompressionType, compress, compression_flag, decompress
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import decode_record, encode_host, encode_record
from gantrymq.proxy.messages import RESERVED, resource, timestamp, to_body, to_properties, to_protobuf
from gantrymq.proxy.v2 import definition_pb2 as pb

UNIQUE = "01AABBCCDDEEFF00112233445566778899"


def stored(
    body: bytes = b"body",
    properties: dict[str, str] | None = None,
    *,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_123,
    reconsume_times: int = 0,
    topic: str = "orders",
) -> MessageExt:
    record = encode_record(
        3,
        0,
        42,
        4096,
        sys_flag,
        born_ms,
        encode_host("10.1.2.3", 5555),
        1_700_000_001_456,
        encode_host("10.9.8.7", 10911),
        reconsume_times,
        0,
        body,
        topic.encode(),
        encode_properties(properties or {}),
    )
    return MessageExt(decode_record(record), "broker-a")


def test_has_what_the_broker_says() -> None:
    properties = {"UNIQ_KEY": UNIQUE, "TAGS": "paid", "KEYS": "k1 k\u30002", "POP_CK": "0 1 2 3 0 b 3 42", "mine": "x"}
    message = to_protobuf(stored(properties=properties, reconsume_times=2))
    system = message.system_properties
    assert message.topic == pb.Resource(name="orders")
    assert message.body == b"body"
    assert dict(message.user_properties) == {"mine": "x"}
    assert (system.message_id, system.tag, list(system.keys)) == (UNIQUE, "paid", ["k1", "k\u30002"])
    assert system.receipt_handle == "0 1 2 3 0 b 3 42"
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 42, 3)
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_001_456
    assert (system.born_host, system.store_host) == ("10.1.2.3", "10.9.8.7:10911")
    assert system.body_digest == pb.Digest(type=pb.MD5, checksum=hashlib.md5(b"body").hexdigest().upper())
    assert (system.body_encoding, system.message_type) == (pb.IDENTITY, pb.NORMAL)
    absent = ("message_group", "trace_context", "delivery_timestamp", "dead_letter_queue")
    assert not any(system.HasField(name) for name in absent)


def test_a_message_of_an_old_producer_has_its_place_as_id() -> None:
    message = stored()
    assert to_protobuf(message).system_properties.message_id == message.offset_msg_id


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, pb.NORMAL),
        ({"__SHARDINGKEY": "a"}, pb.FIFO),
        ({"DELAY": "3"}, pb.DELAY),
        ({"TIMER_DELIVER_MS": "1700000000000"}, pb.DELAY),
        ({"TIMER_DELAY_SEC": "3"}, pb.DELAY),
        ({"TIMER_DELAY_MS": "3"}, pb.DELAY),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "a"}, pb.TRANSACTION),
        ({"TRAN_MSG": "false"}, pb.NORMAL),
    ],
)
def test_kinds(properties: dict[str, str], kind: pb.MessageType) -> None:
    system = to_protobuf(stored(properties=properties)).system_properties
    assert system.message_type == kind
    assert system.message_group == properties.get("__SHARDINGKEY", "")


@pytest.mark.parametrize("due", ["", "soon", "-5", "9" * 30, "\u0663"])
def test_a_time_that_is_none_is_left_out(due: str) -> None:
    properties = {"TIMER_DELIVER_MS": due, "TIMER_DELAY_SEC": due} if due else {}
    assert not to_protobuf(stored(properties=properties)).system_properties.HasField("delivery_timestamp")


def test_says_when_it_was_due() -> None:
    of_producer = to_protobuf(stored(properties={"TIMER_DELIVER_MS": "1700000000123", "TIMER_OUT_MS": "5"}))
    assert of_producer.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_000_123
    of_broker = to_protobuf(stored(properties={"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "1700000000456"}))
    assert of_broker.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_000_456


def test_says_where_a_dead_letter_comes_from() -> None:
    message = to_protobuf(stored(properties={"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": UNIQUE}))
    assert message.system_properties.dead_letter_queue == pb.DeadLetterQueue(topic="orders", message_id=UNIQUE)
    assert not message.user_properties


def test_born_host_is_that_of_the_producer_behind_a_proxy() -> None:
    assert to_protobuf(stored(properties={"__BORNHOST": "laptop"})).system_properties.born_host == "laptop"


@pytest.mark.parametrize("born_ms", [-(2**63), -1, 2**63 - 1])
def test_times_no_client_could_take_are_bounded(born_ms: int) -> None:
    born = to_protobuf(stored(born_ms=born_ms)).system_properties.born_timestamp
    assert 0 <= born.seconds <= 253_402_300_799
    assert 0 <= born.nanos < 10**9
    born.ToDatetime()


def test_as_many_attempts_as_there_can_be() -> None:
    assert to_protobuf(stored(reconsume_times=2**31 - 1)).system_properties.delivery_attempt == 2**31 - 1
    assert to_protobuf(stored(reconsume_times=-7)).system_properties.delivery_attempt == 1


@pytest.mark.parametrize("kind", CompressionType, ids=str)
def test_bodies_of_old_producers_are_plain(kind: CompressionType) -> None:
    plain = b"abc" * 1000
    message = to_protobuf(stored(compress(plain, kind), sys_flag=compression_flag(kind)))
    assert message.body == plain
    assert message.system_properties.body_encoding == pb.IDENTITY


def test_a_body_that_does_not_decompress_is_for_the_client_to_refuse() -> None:
    message = to_protobuf(stored(b"no zlib", sys_flag=compression_flag(CompressionType.ZLIB)))
    assert (message.body, message.system_properties.body_encoding) == (b"no zlib", pb.GZIP)
    assert message.system_properties.body_digest.checksum == hashlib.md5(b"no zlib").hexdigest().upper()


def test_names_with_namespaces() -> None:
    assert resource("orders") == pb.Resource(name="orders")
    assert resource("shop%orders") == pb.Resource(resource_namespace="shop", name="orders")
    assert resource("%DLQ%shop%group") == pb.Resource(resource_namespace="shop", name="%DLQ%group")
    assert resource("%RETRY%group") == pb.Resource(name="%RETRY%group")
    assert resource("%odd") == pb.Resource(name="%odd")


def sent(**system: object) -> pb.Message:
    return pb.Message(
        topic=pb.Resource(name="orders"),
        user_properties={"mine": "x"},
        system_properties=pb.SystemProperties(message_id=UNIQUE, **system),  # type: ignore[arg-type]
        body=b"body",
    )


def test_properties_of_what_a_client_sends() -> None:
    message = sent(tag="paid", keys=["k1", "k2"], message_group="g", trace_context="t", born_host=" laptop ")
    message.system_properties.born_timestamp.CopyFrom(timestamp(1_700_000_000_123))
    message.system_properties.delivery_timestamp.CopyFrom(timestamp(1_700_000_009_999))
    assert to_properties(message, "orders", "10.0.0.1:99") == {
        "mine": "x",
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "UNIQ_KEY": UNIQUE,
        "PGROUP": "orders",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "t",
        "__BORNHOST": "laptop",
        "BORN_TIMESTAMP": "1700000000123",
        "TIMER_DELIVER_MS": "1700000009999",
    }


def test_properties_of_a_transaction() -> None:
    message = sent(message_type=pb.TRANSACTION)
    plain = {"mine": "x", "UNIQ_KEY": UNIQUE, "PGROUP": "orders", "__BORNHOST": "10.0.0.1:99", "TRAN_MSG": "true"}
    assert to_properties(message, "orders", "10.0.0.1:99") == plain
    message.system_properties.orphaned_transaction_recovery_duration.FromSeconds(30)
    assert to_properties(message, "orders", "10.0.0.1:99") == {**plain, "CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}


@given(
    user=st.dictionaries(
        st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1).filter(
            lambda name: name not in RESERVED
        ),
        st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1),
        max_size=5,
    ),
    body=st.binary(),
)
def test_what_is_sent_is_received(user: dict[str, str], body: bytes) -> None:
    message = sent(tag="paid", keys=["a", "b"])
    message.user_properties.clear()
    message.user_properties.update(user)
    message.body = body
    kept, flags = to_body(message)
    back = to_protobuf(stored(kept, to_properties(message, "orders", "10.0.0.1:99"), sys_flag=flags))
    assert back.body == body
    assert dict(back.user_properties) == user
    assert (back.system_properties.message_id, back.system_properties.tag) == (UNIQUE, "paid")
    assert list(back.system_properties.keys) == ["a", "b"]


# -- compressed bodies ------------------------------------------------------------------------------------------------


def zipped(body: bytes) -> pb.Message:
    message = sent(body_encoding=pb.GZIP)
    message.body = body
    return message


def with_whole_header(plain: bytes) -> bytes:
    """Returns gzip data with all optional header fields: extra data, file name, comment, header checksum."""
    raw = zlib.compressobj(wbits=-15)
    deflated = raw.compress(plain) + raw.flush()
    header = b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x03\0abc" + b"name\0" + b"comment\0"
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    return header + deflated + zlib.crc32(plain).to_bytes(4, "little") + len(plain).to_bytes(4, "little")


@given(st.binary())
def test_gzip_becomes_zlib(plain: bytes) -> None:
    named = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=named) as file:
        file.write(plain)
    for packed in (gzip.compress(plain), named.getvalue(), with_whole_header(plain)):
        body, flags = to_body(zipped(packed))
        assert flags == compression_flag(CompressionType.ZLIB)
        assert zlib.decompress(body) == decompress(body, flags) == plain


def test_zlib_by_the_name_of_gzip_stays_as_it_is() -> None:
    packed = zlib.compress(b"abc" * 100)
    assert to_body(zipped(packed)) == (packed, compression_flag(CompressionType.ZLIB))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x1f\x8b",
        b"plain text",
        gzip.compress(b"abc")[:-1],
        gzip.compress(b"abc") + b"rest",
        gzip.compress(b"abc")[:-8] + bytes(8),
        gzip.compress(b"one") + gzip.compress(b"two"),
        zlib.compress(b"abc")[:-1],
    ],
    ids=["empty", "magic only", "text", "cut", "longer", "wrong checksum", "two", "cut zlib"],
)
def test_refuses_what_is_not_compressed_as_said(body: bytes) -> None:
    with pytest.raises(CompressionError):
        to_body(zipped(body))


def test_refuses_a_bomb() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(CompressionError, match="more than 4194304"):
        to_body(zipped(bomb), 4 * 1024 * 1024)
