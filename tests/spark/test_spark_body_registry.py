"""Tests of bodies in the format of Confluent's serializers, with schemas in a registry."""

from __future__ import annotations

import base64
import gc
import io
import json
import pickle
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2
from pyspark.sql.types import IntegerType, LongType, StructField, StructType
from registry_server import Registry, running_registry
from wait_until import wait_until

from gantrymq.arrow.body_values import ValueDecoder
from gantrymq.codecs.registry import client as registry_module
from gantrymq.codecs.registry.client import (
    FREE_MISSES,
    MISS_PAUSE_S,
    UNKNOWN_FOR_S,
    RegisteredSchema,
    SchemaRegistry,
    UnknownIds,
)
from gantrymq.codecs.registry.protobuf_files import descriptor_set
from gantrymq.codecs.registry.settings import RegistrySettings
from gantrymq.codecs.registry.wire_format import encode_indexes, split_indexes
from gantrymq.errors import ClientError, CodecError, ConfigError, GantryError
from gantrymq.spark.bodies.body_format import BodyOptions
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.store.options import StoreOptions
from gantrymq.spark.versions import to_arrow_schema

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
#: The next version of ORDER.
WITH_NOTE = {
    **ORDER,
    "fields": [{"name": "note", "type": ["null", "string"], "default": None}, {"name": "id", "type": "long"}],
}
_Field = descriptor_pb2.FieldDescriptorProto


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    # An earlier registry may have used the same port.
    monkeypatch.setattr(registry_module, "_cache", {})
    with running_registry() as running:
        yield running


def options_of(registry: Registry, **more: str) -> BodyOptions:
    given = {"nameserver": "127.0.0.1:9876", "subscribe": "orders", "schema.registry.url": registry.url}
    body = ReadOptions.parse(given | {"retrytimeoutms": "0"} | more).body
    assert body is not None
    # A task receives pickled options.
    unpickled: BodyOptions = pickle.loads(pickle.dumps(body))
    return unpickled


def decoder_of(options: BodyOptions, kind: Any = None) -> ValueDecoder:
    (field,) = to_arrow_schema(StructType().add("value", options.type_of(kind)))
    return options.decoder(field.type)


def decoded(options: BodyOptions, *bodies: bytes, kind: Any = None) -> tuple[list[Any], dict[int, str]]:
    values, errors = decoder_of(options, kind).decode(bodies)
    return values.to_pylist(), errors


def avro(schema: Any, schema_id: int, value: Any) -> bytes:
    data = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    data.seek(5)
    schemaless_writer(data, parse_schema(json.loads(json.dumps(schema))), value)
    return data.getvalue()


def test_each_body_is_read_by_the_schema_it_names(registry: Registry) -> None:
    first = registry.add("orders-value", json.dumps(ORDER))
    second = registry.add("orders-value", json.dumps(WITH_NOTE))
    options = options_of(registry, bodyformat="avro")
    assert options.column_type().simpleString() == "struct<note:string,id:bigint>"  # type: ignore[union-attr]
    bodies = [avro(ORDER, first, {"id": 1}), avro(WITH_NOTE, second, {"id": 2, "note": "tea"})] * 3
    registry.requests.clear()
    values, errors = decoded(options, *bodies)
    assert values == [{"id": 1, "note": None}, {"id": 2, "note": "tea"}] * 3
    assert not errors
    assert registry.requests == ["GET /schemas/ids/1", "GET /schemas/ids/2"]
    # The schema of an id never changes, so the next task of the process sends no request.
    decoded(options, *bodies)
    assert len(registry.requests) == 2


def test_bodies_without_a_schema_are_told_apart(registry: Registry) -> None:
    number = registry.add("orders-value", json.dumps(ORDER))
    proto = registry.add("other", "", "PROTOBUF")
    good = avro(ORDER, number, {"id": 1})
    bodies = [good, b'{"id": 1}', b"\0\0\0", avro(ORDER, 99, {"id": 1}), avro(ORDER, proto, {"id": 1}), good + b"x"]
    values, errors = decoded(options_of(registry, bodyformat="avro"), *bodies)
    assert values == [{"id": 1}, None, None, None, None, None]
    assert list(errors) == [1, 2, 3, 4, 5]
    assert "but 7b 22 69 64 22: bodies without them are read without the option schema.registry.url" in errors[1]
    assert "has no schema 99, which the body names" in errors[3]
    assert f"schema {proto}, which the body names, is PROTOBUF, not AVRO" in errors[4]


def test_an_id_that_the_registry_does_not_know_is_asked_for_once(registry: Registry) -> None:
    number = registry.add("orders-value", json.dumps(ORDER))
    decoder = decoder_of(options_of(registry, bodyformat="avro"))
    registry.requests.clear()
    values, errors = decoder.decode([avro(ORDER, 99, {"id": 1})] * 100 + [avro(ORDER, number, {"id": 2})])
    assert values.to_pylist() == [None] * 100 + [{"id": 2}]
    assert len(errors) == 100
    assert "has no schema 99, which the body names" in errors[99]
    assert registry.requests == ["GET /schemas/ids/99", f"GET /schemas/ids/{number}"]


def test_a_decoder_has_one_connection_which_ends_with_it(registry: Registry) -> None:
    numbers = [registry.add("orders-value", json.dumps(schema)) for schema in (ORDER, WITH_NOTE)]
    options = options_of(registry, bodyformat="avro")
    wait_until(lambda: not registry.open)
    registry.connections = 0
    decoder = decoder_of(options)
    _, errors = decoder.decode([avro(ORDER, number, {"id": 1}) for number in (98, numbers[0], 99)])
    assert list(errors) == [0, 2]
    assert registry.connections == len(registry.open) == 1
    gc.disable()
    try:
        del decoder
        wait_until(lambda: not registry.open)
    finally:
        gc.enable()


def test_bodies_that_name_ever_other_ids_are_asked_for_now_and_then(registry: Registry) -> None:
    number = registry.add("orders-value", json.dumps(ORDER))
    late = registry.add("elsewhere", json.dumps(WITH_NOTE))
    decoder = decoder_of(options_of(registry, bodyformat="avro"))
    registry.requests.clear()
    good, other = avro(ORDER, number, {"id": 2}), avro(WITH_NOTE, late, {"id": 3, "note": None})
    begun = time.monotonic()
    values, errors = decoder.decode([good, *(avro(ORDER, 1000 + i, {"id": 1}) for i in range(10_000)), good])
    assert len(registry.requests) <= 1 + FREE_MISSES + (time.monotonic() - begun) / MISS_PAUSE_S
    # Cached schemas are not requested again.
    assert (values[0].as_py(), values[10_001].as_py()) == ({"id": 2}, {"id": 2})
    assert list(errors) == list(range(1, 10_001))
    assert "has no schema 1000, which the body names" in errors[1]
    assert any(f"schema {999 + place} was not requested" in error for place, error in errors.items())
    # This id was never reported as missing, so it is requested again later.
    assert wait_until(lambda: decoder.decode([other])[0].to_pylist()[0]) == {"id": 3}


def test_what_is_remembered_of_unknown_ids() -> None:
    unknown = UnknownIds()
    unknown.add(0, 0.0)
    assert unknown.has(0, UNKNOWN_FOR_S - 1)
    assert not unknown.has(0, UNKNOWN_FOR_S)
    now = 0.0
    for schema_id in range(1, 10_000):
        if not unknown.may_request(now):
            now += MISS_PAUSE_S
            assert unknown.may_request(now)
        unknown.add(schema_id, now)
    assert now == pytest.approx((10_000 - FREE_MISSES) * MISS_PAUSE_S)
    assert len(unknown) <= FREE_MISSES + UNKNOWN_FOR_S / MISS_PAUSE_S + 1
    assert unknown.has(9_999, now)
    # An id that is requested again gets a new expiry time.
    unknown.add(9_999, now + UNKNOWN_FOR_S)
    assert unknown.has(9_999, now + UNKNOWN_FOR_S + 1)


def test_a_schema_of_the_reads_own(registry: Registry) -> None:
    number = registry.add("elsewhere", json.dumps(WITH_NOTE))
    options = options_of(registry, bodyformat="avro", bodyschema=json.dumps(ORDER))
    assert not registry.requests
    assert decoded(options, avro(WITH_NOTE, number, {"id": 1, "note": "tea"}))[0] == [{"id": 1}]


def test_subject_and_version(registry: Registry) -> None:
    registry.add("shop/orders", json.dumps(ORDER))
    registry.add("shop/orders", json.dumps(WITH_NOTE))
    of_subject = {"bodyformat": "avro", "schema.registry.subject": "shop/orders"}
    assert options_of(registry, **of_subject).schema_id == 2
    assert options_of(registry, **of_subject, **{"schema.registry.version": "1"}).schema_id == 1
    assert registry.requests[-1] == "GET /subjects/shop%2Forders/versions/1"
    with pytest.raises(ConfigError, match=r"no version 3 of subject shop/orders: .*Version 3 not found"):
        options_of(registry, **of_subject, **{"schema.registry.version": "3"})
    with pytest.raises(ConfigError, match=r"no schema of subject orders-value: name another by option schema.registry"):
        options_of(registry, bodyformat="avro")
    with pytest.raises(ConfigError, match=r"schema\.registry\.subject, a name in the registry, is required"):
        options_of(registry, bodyformat="avro", subscribe="orders,returns")
    with pytest.raises(ConfigError, match="is AVRO, not protobuf as in option bodyFormat"):
        options_of(registry, bodyformat="protobuf", **{"schema.registry.subject": "shop/orders"})
    body = StoreOptions.parse({"path": "/data", "schema.registry.url": registry.url} | of_subject).body
    assert body is not None
    assert body.schema_id == 2


def test_a_dataframe_stays_when_the_subject_gets_a_version(registry: Registry) -> None:
    first = registry.add("orders-value", json.dumps(ORDER))
    kind = options_of(registry, bodyformat="avro").column_type()
    second = registry.add("orders-value", json.dumps(WITH_NOTE))
    options = options_of(registry, bodyformat="avro")
    assert options.type_of(kind) == kind  # type: ignore[arg-type]
    bodies = avro(ORDER, first, {"id": 1}), avro(WITH_NOTE, second, {"id": 2, "note": "tea"})
    assert decoded(options, *bodies, kind=kind)[0] == [{"id": 1}, {"id": 2}]
    other = StructType([StructField("id", IntegerType())])
    assert options.type_of(other) != other


def test_avro_with_references(registry: Registry) -> None:
    place = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}
    # Without a namespace: it must not inherit that of the enclosing record.
    line = {"type": "record", "name": "Line", "fields": [{"name": "place", "type": "geo.Place"}]}
    registry.add("geo.Place", json.dumps(place))
    registry.add("Line", json.dumps(line), references=[{"name": "geo.Place", "subject": "geo.Place", "version": 1}])
    order = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "from", "type": "geo.Place"},
            {"name": "to", "type": ["null", "geo.Place"]},
            {"name": "items", "type": {"type": "array", "items": "Line"}},
        ],
    }
    references = [
        {"name": "geo.Place", "subject": "geo.Place", "version": 1},
        {"name": "Line", "subject": "Line", "version": 1},
    ]
    number = registry.add("orders-value", json.dumps(order), references=references)
    options = options_of(registry, bodyformat="avro")
    assert options.column_type().simpleString() == (  # type: ignore[union-attr]
        "struct<from:struct<x:int>,to:struct<x:int>,items:array<struct<place:struct<x:int>>>>"
    )
    # from 1; to: the second branch, 2; one line at 3.
    body = b"\0" + number.to_bytes(4, "big") + b"\x02" + b"\x02\x04" + b"\x02\x06\x00"
    (value,), errors = decoded(options, body)
    assert not errors
    assert value == {"from": {"x": 1}, "to": {"x": 2}, "items": [{"place": {"x": 3}}]}


BAD_REFERENCES = [
    ("{", r"version 1 of subject geo\.Place in the schema registry is no Avro schema: .*: register it anew"),
    ('["null", "int"]', r"version 1 of subject geo\.Place in the schema registry is no Avro schema: it has no name"),
    ('{"type": "record", "name": "geo.Place", "fields": [{"name": "x"}]}', "is no Avro schema"),
]


def test_a_reference_that_is_gone(registry: Registry) -> None:
    references = [{"name": "geo.Place", "subject": "geo.Place", "version": 3}]
    number = registry.add("orders-value", json.dumps(ORDER), references=references)
    problem = r"no version 3 of subject geo\.Place, which another schema refers to as geo\.Place: bring it back there"
    with pytest.raises(CodecError, match=problem):
        decoder_of(options_of(registry, bodyformat="avro"))
    # Only bodies that name this schema are unreadable.
    other = registry.add("other", json.dumps(ORDER))
    options = options_of(registry, bodyformat="avro", bodyschema=json.dumps(ORDER))
    values, errors = decoded(options, avro(ORDER, number, {"id": 1}), avro(ORDER, other, {"id": 2}))
    assert values == [None, {"id": 2}]
    assert re.search(problem, errors[0])


@pytest.mark.parametrize(("place", "problem"), BAD_REFERENCES)
def test_a_reference_that_is_no_schema(registry: Registry, place: str, problem: str) -> None:
    registry.add("geo.Place", place)
    references = [{"name": "geo.Place", "subject": "geo.Place", "version": 1}]
    order = {**ORDER, "fields": [{"name": "at", "type": "geo.Place"}]}
    number = registry.add("orders-value", json.dumps(order), references=references)
    with pytest.raises(GantryError, match=problem):
        decoder_of(options_of(registry, bodyformat="avro"))
    # Only bodies that name this schema are unreadable, and it is requested once.
    other = registry.add("other", json.dumps(ORDER))
    options = options_of(registry, bodyformat="avro", bodyschema=json.dumps(ORDER))
    registry.requests.clear()
    bodies = [avro(ORDER, number, {"id": 1})] * 3
    values, errors = decoded(options, *bodies, avro(ORDER, other, {"id": 2}))
    assert values == [None, None, None, {"id": 2}]
    for error in errors.values():
        assert re.search(f"schema {number}, which the body names, can't be used: .*{problem}", error)
    assert len(registry.requests) == 3


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"type": "strin"}'])
def test_an_id_whose_schema_is_none(registry: Registry, text: str) -> None:
    number = registry.add("elsewhere", text)
    options = options_of(registry, bodyformat="avro", bodyschema=json.dumps(ORDER))
    values, errors = decoded(options, avro(ORDER, number, {"id": 1}))
    assert values == [None]
    assert re.search(f"schema {number}, which the body names, can't be used: .*no Avro schema", errors[0])
    registry.subjects["orders-value"] = [number]
    with pytest.raises(GantryError, match=r"no Avro schema"):
        decoder_of(options_of(registry, bodyformat="avro"))


def shop_file(*messages: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in messages:
        message = file.message_type.add(name=name)
        message.field.add(name="id", number=1, type=_Field.TYPE_INT64, label=_Field.LABEL_OPTIONAL)
        message.nested_type.add(name="Note")
    return file


def test_protobuf(registry: Registry) -> None:
    file = shop_file("Order")
    file.dependency.extend(["google/protobuf/timestamp.proto", "shop/item.proto"])
    for number, name in ((2, "google.protobuf.Timestamp"), (3, "shop.Item")):
        file.message_type[0].field.add(
            name=name.rpartition(".")[2].lower(),
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{name}",
            label=_Field.LABEL_OPTIONAL,
        )
    registry.add_proto("item", shop_file("Item").SerializeToString())
    references = [{"name": "shop/item.proto", "subject": "item", "version": 1}]
    number = registry.add_proto("orders-value", file.SerializeToString(), references)
    before = b"\0" + number.to_bytes(4, "big")
    options = options_of(registry, bodyformat="protobuf")
    assert options.message == "shop.Order"
    assert options.column_type().simpleString() == (  # type: ignore[union-attr]
        "struct<id:bigint,timestamp:timestamp,item:struct<id:bigint>>"
    )
    bodies = [
        before + b"\0" + b"\x08\x02",
        # The message index in its long form.
        before + b"\x02\0" + b"\x08\x03\x1a\x02\x08\x04",
        before + b"\x04\0\0",
        before + b"\x02\x0e",
        before + b"\x02",
        before + b"\x05",
    ]
    values, errors = decoded(options, *bodies)
    assert [value and (value["id"], value["item"]) for value in values] == [
        (2, None),
        (3, {"id": 4}),
        None,
        None,
        None,
        None,
    ]
    assert errors[2] == "the body is a shop.Order.Note, not a shop.Order"
    assert errors[3] == "the body is a message at [7], not a shop.Order"
    assert "the message indexes at the start of the body" in errors[4]
    assert "-3 indexes" in errors[5]


@pytest.mark.parametrize("text", ["\u00e9", None])
def test_a_protobuf_file_that_is_none(text: str | None) -> None:
    """Text that is not Base64, and an import whose name is not UTF-8."""
    file = shop_file("Order")
    file.dependency.append("shop/item.proto")
    damaged = file.SerializeToString().replace(b"shop/item", b"shop\xffitem")
    schema = RegisteredSchema(base64.b64encode(damaged).decode() if text is None else text, "PROTOBUF")
    registry = SchemaRegistry(RegistrySettings(("http://127.0.0.1:1",)))
    with pytest.raises(ConfigError, match="doesn't give protobuf's files as descriptors"):
        descriptor_set(registry, schema)


def test_protobuf_of_several_messages(registry: Registry, tmp_path: Any) -> None:
    registry.add_proto("orders-value", shop_file("Order", "Return").SerializeToString())
    with pytest.raises(ConfigError, match=r"several messages: give option bodyMessage \(shop\.Order.*shop\.Return\)"):
        options_of(registry, bodyformat="protobuf")
    # A later file has another message at the beginning. The file named by each body defines its indexes.
    other = registry.add_proto("orders-value", shop_file("Cart", "Order").SerializeToString())
    options = options_of(registry, bodyformat="protobuf", bodymessage="shop.Order", **{"schema.registry.version": "1"})
    bodies = [b"\0\0\0\0\1\0\x08\x02", b"\0\0\0\0" + bytes((other,)) + b"\x02\x02\x08\x03"]
    assert decoded(options, *bodies) == ([{"id": 2}, {"id": 3}], {})
    assert decoded(options, b"\0\0\0\0" + bytes((other,)) + b"\0\x08\x03")[1] == {
        0: "the body is a shop.Cart, not a shop.Order"
    }
    # With its own descriptor file, a read sends no request to the registry.
    set_file = tmp_path / "shop.desc"
    set_file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[shop_file("Order", "Return")]).SerializeToString())
    registry.requests.clear()
    own = {"bodyformat": "protobuf", "bodymessage": "shop.Return", "bodyschemafile": str(set_file)}
    options = options_of(registry, **own)
    values, errors = decoded(options, b"\0\0\0\0\x09\x02\x02\x08\x02", b"\0\0\0\0\x09\0\x08\x02")
    assert values == [{"id": 2}, None]
    assert errors == {1: "the body is a shop.Order, not a shop.Return"}
    assert not registry.requests


def test_a_registry_without_descriptors(registry: Registry) -> None:
    registry.add("orders-value", 'syntax = "proto3"; message Order {}', "PROTOBUF")
    with pytest.raises(ConfigError, match=r"format=serialized.*give a descriptor set by option bodySchemaFile"):
        options_of(registry, bodyformat="protobuf")
    file = shop_file("Order")
    file.dependency.append("confluent/meta.proto")
    registry.add_proto("orders-value", file.SerializeToString())
    with pytest.raises(ConfigError, match=r"imports confluent/meta\.proto, which isn't among its references"):
        options_of(registry, bodyformat="protobuf")


def test_places_of_messages() -> None:
    for place in ((0,), (1,), (0, 0), (3, 200, 70_000)):
        assert split_indexes(encode_indexes(place) + b"rest") == (place, b"rest")
    for bad in (b"", b"\x80", b"\xff" * 9, b"\xfe\xff\x03"):
        with pytest.raises(CodecError):
            split_indexes(bad)


JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["string", "null"], "format": "date"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "definitions": {"item": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


def test_json(registry: Registry) -> None:
    number = registry.add("orders-value", json.dumps(JSON_SCHEMA), "JSON")
    options = options_of(registry, bodyformat="json")
    kind = options.column_type()
    assert isinstance(kind, StructType)
    assert kind.simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,day:date,price:double,paid:boolean,"
        "items:array<struct<name:string>>,labels:map<string,bigint>>"
    )
    assert [field.name for field in kind.fields if not field.nullable] == ["id"]
    before = b"\0" + number.to_bytes(4, "big")
    values, errors = decoded(options, before + b'{"id": 1, "items": [{"name": "tea"}]}', b'{"id": 1}', kind=kind)
    assert (values[0]["id"], values[0]["items"]) == (1, [{"name": "tea"}])
    assert list(errors) == [1]
    # With its own column types, a read needs no schema.
    registry.requests.clear()
    own = StructType([StructField("id", LongType())])
    assert decoded(options_of(registry, bodyformat="json"), before + b'{"id": 1}', kind=own)[0] == [{"id": 1}]
    assert not registry.requests


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("true", "value may be anything"),
        ('{"type": "object"}', "value is an object without properties"),
        ('{"type": ["string", "integer"]}', "value has several types"),
        ('{"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}', r"value\.a has an anyOf"),
        ('{"properties": {"a": {"type": "array"}}}', r"value\.a\[\] may be anything"),
        ('{"properties": {"a": {"$ref": "#"}}}', r"value\.a\.a is a # within itself"),
        ('{"properties": {"a": {"$ref": "item.json"}}}', r"value\.a refers to item\.json, another schema"),
        ('{"properties": {"a": {"enum": [1]}}}', r"value\.a has no type"),
        ("{", "is no JSON"),
    ],
)
def test_json_schemas_without_a_type(registry: Registry, schema: str, problem: str) -> None:
    registry.add("orders-value", schema, "JSON")
    with pytest.raises(ConfigError, match=problem):
        options_of(registry, bodyformat="json").column_type()


def test_a_registry_that_is_away_is_asked_again(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    registry.fails += [(503, b"<html>starting</html>"), (500, b'{"error_code": 50001, "message": "store"}')]
    assert options_of(registry, bodyformat="avro", retrytimeoutms="60000").schema_id == 1
    assert len(registry.requests) == 3
    registry.fails.append((503, b"starting\nup"))
    with pytest.raises(
        ClientError, match=r"doesn't respond: http://127.*: 503 starting up \(tried for 0 s, option retry"
    ):
        options_of(registry, bodyformat="avro")
    # Of several addresses, one answers.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        both = {"bodyformat": "avro", "schema.registry.url": f"{away}, {registry.url}/"}
        assert options_of(registry, **both).schema_id == 1
        with pytest.raises(ClientError, match=f"doesn't respond: {away}: .*refused"):
            options_of(registry, bodyformat="avro", **{"schema.registry.url": away})


def test_a_registry_that_is_away_makes_no_body_a_bad_one(registry: Registry) -> None:
    number = registry.add("orders-value", json.dumps(ORDER))
    options = options_of(registry, bodyformat="avro")
    registry.fails.append((503, b""))
    with pytest.raises(ClientError, match="doesn't respond"):
        decoded(options, avro(ORDER, number, {"id": 1}))
    assert decoded(options, avro(ORDER, number, {"id": 1})) == ([{"id": 1}], {})


def test_answers_that_come_slowly(registry: Registry) -> None:
    """The response is slow in its headers or in its body. Each read still receives some bytes."""

    def ask(slow: Registry) -> str:
        with pytest.raises(ClientError) as caught:
            options_of(slow, bodyformat="avro")
        return str(caught.value)

    with running_registry() as other, ThreadPoolExecutor(2) as threads:
        registry.endless = b"HTTP/1.1 200 OK\r\nx: y", 0.5
        other.endless = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{", 0.5
        for problem in threads.map(ask, [registry, other]):
            assert "no complete response within 10 s" in problem


def test_an_answer_without_end(registry: Registry) -> None:
    registry.endless = b"HTTP/1.1 200 OK\r\n\r\n ", 0.0
    with pytest.raises(ConfigError, match="its response has more than 16777216 bytes"):
        options_of(registry, bodyformat="avro")


def test_who_asks(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    registry.authorization = "Basic " + base64.b64encode(b"me:hu:sh").decode()
    with pytest.raises(ConfigError, match=r"refuses: 401 Unauthorized: options schema\.registry\.basic\.auth\.user"):
        options_of(registry, bodyformat="avro")
    options = options_of(registry, bodyformat="avro", **{"schema.registry.basic.auth.user.info": "me:hu:sh"})
    assert "sh" not in repr(options.registry)
    registry.authorization = "Bearer psst"
    options = options_of(registry, bodyformat="avro", **{"schema.registry.bearer.auth.token": "psst"})
    assert "psst" not in repr(options.registry)


def test_what_is_no_registry(registry: Registry) -> None:
    for status, answer, problem in [
        (200, b"<html></html>", "doesn't respond like a schema registry"),
        (200, b'{"id": "x"}', "doesn't respond like a schema registry"),
        (200, b'{"schema": "\xcf"}', "doesn't respond like a schema registry"),
        (418, b'{"message": "\xcf"}', "doesn't respond like a schema registry: 418 "),
        (302, b"https://elsewhere/", "redirects to https://elsewhere/: use that address"),
        (418, b"tea", "doesn't respond like a schema registry: 418 tea"),
    ]:
        registry.fails.append((status, answer))
        with pytest.raises(ConfigError, match=problem):
            options_of(registry, bodyformat="avro")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("schema.registry.url", "registry:8081", r"'registry:8081' is no address like"),
        ("schema.registry.url", "http://me:hush@registry:8081", "user and password go into option schema"),
        ("schema.registry.basic.auth.user.info", "me", "the form is user:password"),
        ("schema.registry.version", "newest", "'newest' is no whole number"),
        ("schema.registry.ssl.key.location", "/key.pem", "no meaning without schema.registry.ssl.certificate.location"),
        ("schema.registry.ssl.ca.location", "/none.pem", "can't be used"),
        ("schema.registry.subjekt", "orders", "did you mean 'schema.registry.subject'"),
        ("bodyformat", "string", "no meaning with bodyFormat string"),
    ],
)
def test_wrong_options(registry: Registry, name: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        options_of(registry, **{"bodyformat": "avro", name: value})
    assert "hush" not in str(caught.value)


def test_a_registry_without_an_address() -> None:
    with pytest.raises(ConfigError, match=r"subject has no meaning without schema\.registry\.url"):
        ReadOptions.parse({"nameserver": "a:1", "subscribe": "t", "bodyformat": "json", "schema.registry.subject": "x"})
