"""Tests of codecs: round trips, errors for invalid values, and encoded messages through a cluster."""

from __future__ import annotations

import asyncio
import enum
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from wait_until import until

from gantrymq import Message, MessageExt, Producer, PushConsumer
from gantrymq.codecs import AvroCodec, Codec, JsonCodec, ProtobufCodec, PydanticCodec, codec_named
from gantrymq.errors import ClientError, CodecError
from gantrymq.protocol.record import Record
from gantrymq.testing.embedded import EmbeddedCluster

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "what", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


class Kind(enum.Enum):
    FRUIT = "fruit"


class Order(msgspec.Struct):
    what: str
    count: int
    kind: Kind = Kind.FRUIT


@dataclass
class Plain:
    what: str
    count: int


class Model(BaseModel):
    what: str
    count: int = Field(alias="howMany")


AT = datetime(2025, 1, 31, 12, tzinfo=UTC)
CASES: list[tuple[str, Codec[Any], Any, str]] = [
    ("struct", JsonCodec(Order), Order("äpples", 42), '{"what":"äpples","count":42,"kind":"fruit"}'),
    ("dataclass", JsonCodec(Plain), Plain("pears", 1), '{"what":"pears","count":1}'),
    ("any", JsonCodec(object), {"a": [1, None, 2.5]}, '{"a":[1,null,2.5]}'),
    ("pydantic", PydanticCodec(Model), Model(what="plums", howMany=3), '{"what":"plums","howMany":3}'),
    (
        "avro",
        AvroCodec(SCHEMA),
        {"what": "figs", "count": 7, "at": AT},
        '{"what":"figs","count":7,"at":"2025-01-31T12:00:00Z"}',
    ),
    ("avro-bytes", AvroCodec({"type": "bytes"}), b"\xff", '"/w=="'),
    ("protobuf", ProtobufCodec(Timestamp), Timestamp(seconds=1), '"1970-01-01T00:00:01Z"'),
]


@pytest.mark.parametrize(("codec", "value", "text"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_there_and_back(codec: Codec[Any], value: Any, text: str) -> None:
    data = codec.encode(value)
    assert codec.decode(data) == value
    assert type(codec.decode(data)) is type(value)
    assert codec.to_json(value).decode() == text
    message = codec.message("orders", value, tags="fruit", keys=["k"], properties={"country": "NO"})
    assert (message.topic, message.body, message.tags, message.keys) == ("orders", data, "fruit", ["k"])
    assert message.properties["contentType"] == codec.content_type
    assert message.properties["country"] == "NO"
    own = codec.message("orders", value, properties={"contentType": "application/cloudevents+json"})
    assert own.properties["contentType"] == "application/cloudevents+json"


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JsonCodec(object), object()),
        (JsonCodec(str), "\ud800"),
        (AvroCodec(SCHEMA), {"what": "figs"}),
        (AvroCodec(SCHEMA), 5),
        (ProtobufCodec(Timestamp), Struct()),
    ],
    ids=["json", "surrogate", "avro-missing", "avro-kind", "protobuf-class"],
)
def test_what_has_no_bytes_is_refused(codec: Codec[Any], value: Any) -> None:
    with pytest.raises(CodecError):
        codec.encode(value)


@pytest.mark.parametrize(
    ("codec", "data", "words"),
    [
        (JsonCodec(Order), b'{"what":"a","count":"b"}', r"no JSON of type Order: Expected `int`, got `str` - at `\$"),
        (JsonCodec(Order), b'{"what":"a","count":1} ,', "trailing"),
        (JsonCodec(object), b"[" * 100_000, "recursion|Stack overflow"),
        (JsonCodec(str), b'"\xff"', "invalid start byte"),
        (PydanticCodec(Model), b'{"what": "a"}', "howMany"),
        (AvroCodec(SCHEMA), b"", "no Order of this Avro schema: the body ends too early, after 0 bytes"),
        (AvroCodec(SCHEMA), b"\x02a\x02\x02\0", "no Order of this Avro schema: 1 of 5 bytes are left over"),
        (AvroCodec({"type": "enum", "name": "Fruit", "symbols": ["fig", "date"]}), b"\x01", "-1 of the 2 symbols"),
        (AvroCodec(["null", "string"]), b"\x01\x02a", "-1 of the 2 types of a union"),
        (AvroCodec({"type": "array", "items": "long"}), b"\xfe\xff\xff\xff\x0f", "it says it has [0-9]+ more items"),
        (ProtobufCodec(Timestamp), b"\xff", "no protobuf Timestamp: "),
    ],
    ids=[
        "type", "trailing", "deep", "utf8", "pydantic", "avro-empty", "avro-rest", "avro-symbol", "avro-union",
        "avro-items", "protobuf",
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(codec: Codec[Any], data: bytes, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        codec.decode(data)


@given(st.sampled_from([case[1] for case in CASES]), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_codec_error(codec: Codec[Any], data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CodecError:
        return
    try:
        codec.to_json(value)
    except CodecError:
        return


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def test_empty_fields_of_avro_do_not_multiply() -> None:
    schema = record("R0", *["null"] * 10)
    for number in range(1, 9):
        schema = record(f"R{number}", schema, *[f"R{number - 1}"] * 9)
    with pytest.raises(CodecError, match="has more than 100 fields without bytes"):
        AvroCodec(schema)
    assert AvroCodec(record("R", *["null"] * 100, "int")).decode(b"\2")["f100"] == 1


def test_sizes_of_avro_types_are_checked() -> None:
    # With a negative size, the check returned to the start of the block, without end.
    back = record("R", "int", {"type": "fixed", "name": "F", "size": -2})
    with pytest.raises(CodecError, match="type F of the schema has an invalid size of -2 bytes"):
        AvroCodec({"type": "array", "items": back})
    with pytest.raises(CodecError, match="no Avro schema"):
        AvroCodec({"type": "fixed", "name": "F", "size": "x"})


def test_a_decimal_of_avro_has_a_limit() -> None:
    # The conversion of 4 MiB took minutes, and nothing could interrupt it.
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 3000, "scale": 0}
    lengths = AvroCodec("bytes")
    largest = lengths.encode(b"\x7f" * 1000)
    assert AvroCodec(decimal).decode(largest).adjusted() == 2407
    with pytest.raises(CodecError, match="a decimal has more than 1000 bytes"):
        AvroCodec(decimal).decode(lengths.encode(b"\x7f" * 1001))
    with pytest.raises(CodecError, match="a scale of more than 10000"):
        AvroCodec(decimal | {"precision": 1_000_000_000, "scale": 1_000_000_000})
    with pytest.raises(CodecError, match="invalid size of 1001 bytes"):
        AvroCodec(decimal | {"type": "fixed", "name": "F", "size": 1001, "precision": 2})


def received(data: bytes) -> MessageExt:
    record = Record(0, 3, 0, 17, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0, data, b"orders", b"UNIQ_KEY\x01ID1")
    return MessageExt(record, "broker-a")


def test_an_error_says_where_the_message_is() -> None:
    class Broken(Codec[int]):
        content_type = "text/plain"

        def encode(self, value: int) -> bytes:
            return b"%d" % value

        def decode(self, data: bytes) -> int:
            return int(data)

    for codec in (JsonCodec(Order), Broken()):
        with pytest.raises(CodecError, match="message ID1 at offset 17 of queue 3 of orders on broker-a: "):
            codec.value(received(b"nonsense"))
    assert Broken().value(received(b"5")) == 5
    assert Broken().to_json(5) == b"5"


async def test_handlers() -> None:
    codec = JsonCodec(Plain)
    message = received(codec.encode(Plain("a", 1)))
    seen: list[tuple[Plain, MessageExt]] = []

    def plain(value: Plain, message: MessageExt) -> str:
        seen.append((value, message))
        return "plain"

    async def coroutine(value: Plain, message: MessageExt) -> str:
        seen.append((value, message))
        return "coroutine"

    class Called:
        async def __call__(self, value: Plain, message: MessageExt) -> str:
            return await coroutine(value, message)

    assert codec.handler(plain)(message) == "plain"
    for handle in (coroutine, Called()):
        handler = codec.handler(handle)
        assert asyncio.iscoroutinefunction(handler)
        assert await handler(message) == "coroutine"
    assert seen == [(Plain("a", 1), message)] * 3
    with pytest.raises(CodecError, match="of orders"):
        codec.handler(plain)(received(b"{}"))
    with pytest.raises(ClientError, match="can't be called with a value and its message"):
        codec.handler(lambda value: None)  # type: ignore[arg-type, misc]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


async def test_what_cannot_be_decoded_goes_the_way_of_all_failures(cluster: EmbeddedCluster) -> None:
    codec = JsonCodec(Plain)
    values: list[Plain] = []
    errors: list[Exception] = []

    async def handle(value: Plain, message: MessageExt) -> None:
        values.append(value)

    handler = codec.handler(handle)

    async def watched(message: MessageExt) -> None:
        try:
            await handler(message)  # type: ignore[misc]
        except Exception as e:
            errors.append(e)
            raise

    async with Producer(cluster.name_server, "shop") as producer:
        await producer.send(Message("plain-orders", b"nonsense"))
        await producer.send(codec.message("plain-orders", Plain("pears", 2)))
    consumer = PushConsumer(cluster.name_server, "codecs", watched, start_from="earliest", max_reconsume_times=0)
    consumer.subscribe("plain-orders")
    dead = PushConsumer(
        cluster.name_server, "undertakers", lambda message: bodies.append(message.body),
        start_from="earliest",
    )  # fmt: skip
    bodies: list[bytes] = []
    dead.subscribe("%DLQ%codecs")
    async with consumer, dead:
        await until(lambda: values and bodies)
    assert values == [Plain("pears", 2)]
    assert bodies == [b"nonsense"]
    (error,) = errors
    assert isinstance(error, CodecError)
    assert "of plain-orders on " in str(error)


# -- by name ----------------------------------------------------------------------------------------------------------


def test_codecs_by_name(tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    assert codec_named("json").decode(b"[1]") == [1]
    assert codec_named("protobuf:google.protobuf.timestamp_pb2:Timestamp").decode(b"\x08\x01").seconds == 1
    assert codec_named("json:decimal:Decimal").decode(b'"1.5"').is_finite()
    assert isinstance(codec_named(f"avro:{schema}"), AvroCodec)
    assert isinstance(codec_named("pydantic:pydantic:BaseModel"), PydanticCodec)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xml", "names no codec: json"),
        ("avro", "names no codec"),
        ("avro:/nowhere/x.avsc", "No such file"),
        (f"avro:{__file__}", "is no JSON, and so no Avro schema"),
        ("protobuf:google.protobuf.timestamp_pb2", "MODULE:NAME is wanted"),
        ("protobuf:nowhere_to_be_found:A", "can't be imported: No module named 'nowhere_to_be_found'"),
        ("protobuf:google.protobuf.timestamp_pb2:A", "can't be imported"),
        ("json:json:dumps", "dumps of 'json:json:dumps' is no class"),
    ],
    ids=["unknown", "no-file", "missing-file", "no-schema", "no-class", "no-module", "unknown-class", "function"],
)
def test_names_of_nothing(name: str, words: str) -> None:
    with pytest.raises(CodecError, match=words.replace(os.sep, ".")):
        codec_named(name)


def test_a_schema_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text('{"type": "rekord"}')
    with pytest.raises(CodecError, match=r"order.avsc: no Avro schema: UnknownType"):
        AvroCodec.from_file(path)
