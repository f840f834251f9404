"""Tests of RegistryCodec: round trips in three formats, errors with fields, and registries that respond badly."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import UUID

import httpx
import pytest
from google.protobuf import descriptor_pb2
from registry_server import Registry, running_registry
from wait_until import until, wait_until

from gantrymq import MessageExt
from gantrymq.codecs import RegistryCodec, RegistrySettings
from gantrymq.codecs.registry import client as registry_module
from gantrymq.codecs.registry.client import MAX_REFERENCES
from gantrymq.codecs.registry.wire_format import prefix
from gantrymq.errors import ClientClosed, ClientError, CodecError, ConfigError
from gantrymq.protocol.record import Record

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "what", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            "default": None,
        },
        {"name": "picture", "type": ["null", "bytes"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "id", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["FRUIT", "OTHER"]}, "default": "FRUIT"},
    ],
}
FULL = {
    "what": "apples",
    "count": 42,
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "price": Decimal("12.50"),
    "picture": b"\xff\0",
    "tags": ["a", "b"],
    "id": UUID(int=17),
    "kind": "OTHER",
}
JSON_ORDER = {
    "type": "object",
    "properties": {
        "what": {"type": "string"},
        "count": {"type": "integer"},
        "customer": {"$ref": "customer.json#/definitions/customer"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["what"],
    "additionalProperties": False,
}
CUSTOMER = {"definitions": {"customer": {"type": "object", "required": ["name"]}}}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    # Each test has a registry of its own, whose port can be that of an earlier one.
    monkeypatch.setattr(registry_module, "_cache", {})
    with running_registry() as running:
        yield running


def received(body: bytes) -> MessageExt:
    record = Record(0, 3, 0, 17, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0, body, b"orders", b"UNIQ_KEY\x01ID1")
    return MessageExt(record, "broker-a")


def proto_file(*messages: str) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in messages:
        message = file.message_type.add(name=name)
        message.field.add(name="what", number=1, type=9, label=1, json_name="what")
        message.field.add(name="count", number=2, type=5, label=1, json_name="count")
    return file.SerializeToString()


def test_avro_is_encoded_by_subject_and_decoded_by_id(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    with_subject = RegistryCodec(registry.url, subject="orders-value")
    body = with_subject.encode(FULL)
    assert body.startswith(prefix(1))
    assert RegistryCodec(registry.url).decode(body) == FULL
    assert with_subject.message("orders", FULL).body == body


def test_json_of_a_value_is_encoded_to_the_same_body(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    codec = RegistryCodec(registry.url, subject="orders-value")
    body = codec.encode(FULL)
    assert codec.encode_json(codec.to_json(codec.decode(body))) == body


def test_schemas_are_requested_once(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    codec = RegistryCodec(registry.url, subject="orders-value")
    for _ in range(5):
        codec.decode(codec.encode(FULL))
    assert registry.requests == ["GET /subjects/orders-value/versions/latest", "GET /schemas/ids/1"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"what": "apples"}, "field count is missing: add it"),
        ({"what": "apples", "count": "x"}, 'field count is "x": write an integer of 32 bits'),
        ({"what": "apples", "count": 2**31}, "field count is 2147483648: write an integer of 32 bits"),
        ({"what": "apples", "count": True}, "field count is true"),
        ({"what": "apples", "count": 1, "cuont": 1}, "field cuont is not in the schema: shop.Order has what, count"),
        ({"what": "apples", "count": 1, "tags": ["a", 1]}, r"field tags\[1\] is 1: write a string"),
        ({"what": "apples", "count": 1, "kind": "X"}, 'field kind is "X": write one of FRUIT, OTHER'),
        ({"what": "apples", "count": 1, "at": "noon"}, 'field at is "noon": write a time with its zone'),
        ({"what": "apples", "count": 1, "picture": "?"}, "field picture is .*Base64"),
        ({"what": "apples", "count": 1, "price": "much"}, "field price is .*write a decimal"),
        ({"what": "apples", "count": 1, "price": "1e999999999"}, "field price is .*write a decimal"),
        ({"what": "apples", "count": 1, "price": "1.005"}, "field price is .*write a decimal with at most 9 digits, 2"),
        ({"what": "apples", "count": 1, "price": "12345678.00"}, "field price is .*write a decimal with at most 9"),
        ({"what": "apples", "count": 1, "at": 2**63}, "field at is .*write an integer of 64 bits"),
        ({"what": "apples", "count": 1, "id": "17"}, 'field id is "17": write a UUID'),
        ([], "the value is .*write an object with the fields of shop.Order"),
    ],
)
def test_json_that_is_no_avro_value_names_the_field(registry: Registry, value: Any, problem: str) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    with pytest.raises(CodecError, match=problem):
        RegistryCodec(registry.url, subject="orders-value").encode_json(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "field what is missing"),
        ({"what": 1}, "field what is 1: write a value of type string"),
        # JSON has no NaN, so readers receive null.
        ({"what": "a", "count": float("nan")}, "field count is null: write a value of type integer"),
        ({"what": "a", "count": 1.5}, "field count is 1.5: write a value of type integer"),
        ({"what": "a", "more": 1}, "field more is not in the schema: it has what, count"),
        ({"what": "a", "customer": {}}, "field customer.name is missing"),
        ({"what": "a", "note": 1}, "field note is 1: write a value of type string"),
    ],
)
def test_json_schema_with_a_reference(registry: Registry, value: Any, problem: str) -> None:
    registry.add("customer", json.dumps(CUSTOMER), "JSON")
    reference = {"name": "customer.json", "subject": "customer", "version": 1}
    registry.add("orders-value", json.dumps(JSON_ORDER), "JSON", [reference])
    codec = RegistryCodec(registry.url, subject="orders-value")
    with pytest.raises(CodecError, match=problem):
        codec.encode(value)
    valid = {"what": "a", "count": 1, "customer": {"name": "b"}, "note": None}
    assert codec.decode(codec.encode(valid)) == valid


def doubling(keyword: str) -> dict[str, Any]:
    """Returns a small schema in which each of 50 definitions refers to the next one twice."""
    definitions = [{keyword: [{"$ref": f"#/$defs/{number + 1}"}] * 2} for number in range(50)]
    return {"$ref": "#/$defs/0", "$defs": [*definitions, {}]}


def test_json_schema_checks_what_readers_receive(registry: Registry) -> None:
    schema = {"properties": {"at": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}}}
    registry.add("orders-value", json.dumps(schema), "JSON")
    codec = RegistryCodec(registry.url, subject="orders-value")
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert codec.encode({"at": at, "tags": (1, 2)}) == prefix(1) + b'{"at":"2026-01-31T12:00:00Z","tags":[1,2]}'
    with pytest.raises(CodecError, match=r"field tags\[1\] is null"):
        codec.encode({"tags": (1, None)})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "#"}, "nested too deeply"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "nested too deeply"),
        (doubling("allOf"), "too many checks"),
        (doubling("anyOf"), "too many checks"),
        ({"$ref": "#order"}, "give the path of the definition"),
        ({"$ref": "#/$defs/x"}, "JSON Schema in the registry is invalid"),
        ({"$ref": "y.json"}, "register it with this reference"),
        ({"type": "strin"}, "JSON Schema in the registry is invalid"),
        ([1], "JSON Schema in the registry is invalid"),
    ],
    ids=range(9),
)
def test_json_schemas_that_cannot_be_checked(registry: Registry, schema: Any, problem: str) -> None:
    registry.add("orders-value", json.dumps(schema), "JSON")
    with pytest.raises(CodecError, match=problem):
        RegistryCodec(registry.url, subject="orders-value").encode({})


def test_unions_of_a_recursive_schema_do_not_multiply(registry: Registry) -> None:
    other = {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]}]}
    schema = {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A", other]}]}
    registry.add("orders-value", json.dumps(schema))
    codec = RegistryCodec(registry.url, subject="orders-value")
    deep = b'{"x": ' * 50 + b"%s" + b"}" * 50
    assert codec.encode_json(deep % b"null")
    # Each of 50 levels can be A or B.
    with pytest.raises(CodecError, match="too many combinations"):
        codec.encode_json(deep % b"1")


def test_recursive_schemas(registry: Registry) -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
    }
    registry.add("avro-value", json.dumps(node))
    value = {"next": {"next": None}}
    for subject in ("avro-value", "json-value"):
        schema = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}
        registry.add("json-value", json.dumps(schema), "JSON")
        codec = RegistryCodec(registry.url, subject=subject)
        assert codec.decode(codec.encode_json(json.dumps(value).encode())) == value
        with pytest.raises(CodecError, match=r"field next\.next is 1"):
            codec.encode_json(b'{"next": {"next": 1}}')


@pytest.mark.parametrize("depth", [500, 5000])
def test_an_avro_schema_that_is_nested_deeply(registry: Registry, depth: int) -> None:
    registry.add("orders-value", '{"type": "array", "items": ' * depth + '"int"' + "}" * depth)
    codec = RegistryCodec(registry.url, subject="orders-value")
    try:
        codec.load()
    except CodecError as e:
        assert len(str(e)) < 1000  # noqa: PT017
    else:
        assert codec.decode(codec.encode([])) == []


def test_avro_with_a_reference(registry: Registry) -> None:
    registry.add("kinds", '{"type": "enum", "name": "shop.Kind", "symbols": ["A", "B"]}')
    schema = {"type": "record", "name": "shop.Order", "fields": [{"name": "kind", "type": "shop.Kind"}]}
    registry.add("orders-value", json.dumps(schema), "AVRO", [{"name": "shop.Kind", "subject": "kinds", "version": 1}])
    codec = RegistryCodec(registry.url, subject="orders-value")
    assert codec.decode(codec.encode({"kind": "B"})) == {"kind": "B"}


def test_protobuf(registry: Registry) -> None:
    registry.add_proto("orders-value", proto_file("Order"))
    codec = RegistryCodec(registry.url, subject="orders-value")
    body = codec.encode({"what": "apples", "count": 2})
    assert body.startswith(prefix(1) + b"\0")
    value = RegistryCodec(registry.url).decode(body)
    assert (value.what, value.count) == ("apples", 2)
    assert json.loads(codec.to_json(value)) == {"what": "apples", "count": 2}
    assert codec.encode(value) == body
    with pytest.raises(CodecError, match=r"no shop.Order: .*cuont"):
        codec.encode_json(b'{"cuont": 1}')


def test_a_protobuf_file_with_two_messages(registry: Registry) -> None:
    registry.add_proto("orders-value", proto_file("Order", "Refund"))
    with pytest.raises(ConfigError, match=r"several messages: give argument message \("):
        RegistryCodec(registry.url, subject="orders-value").load()
    with pytest.raises(ConfigError, match=r"argument message: the schema has no message shop.X, but shop.Order, shop"):
        RegistryCodec(registry.url, subject="orders-value", message="shop.X").load()
    body = RegistryCodec(registry.url, subject="orders-value", message="shop.Refund").encode({"what": "a"})
    assert RegistryCodec(registry.url).decode(body).DESCRIPTOR.full_name == "shop.Refund"


def test_a_reference_to_a_deleted_schema(registry: Registry) -> None:
    registry.add("kinds", '{"type": "enum", "name": "shop.Kind", "symbols": ["A", "B"]}')
    schema = {"type": "record", "name": "shop.Order", "fields": [{"name": "kind", "type": "shop.Kind"}]}
    registry.add("orders-value", json.dumps(schema), "AVRO", [{"name": "shop.Kind", "subject": "kinds", "version": 1}])
    registry.deleted.add("kinds")
    assert RegistryCodec(registry.url).decode(prefix(2) + b"\x02") == {"kind": "B"}


def test_slow_references_end(registry: Registry) -> None:
    for number in range(60):
        reference = {"name": f"shop.T{number + 1}", "subject": f"s{number + 1}", "version": 1}
        schema = {"type": "record", "name": f"shop.T{number}", "fields": []}
        registry.add(f"s{number}", json.dumps(schema), "AVRO", [reference])
    registry.delay_s = 0.05
    settings = RegistrySettings((registry.url,), request_timeout_s=0.5, retry_timeout_s=0.0)
    with pytest.raises(ClientError, match=r"no complete response|too slow: .* took more than 0.5 s"):
        RegistryCodec(settings, subject="s0").load()


def test_an_endless_chain_of_references_ends(registry: Registry) -> None:
    for number in range(MAX_REFERENCES + 2):
        reference = {"name": f"shop.T{number + 1}", "subject": f"s{number + 1}", "version": 1}
        schema = {"type": "record", "name": f"shop.T{number}", "fields": []}
        registry.add(f"s{number}", json.dumps(schema), "AVRO", [reference])
    with pytest.raises(CodecError, match="more than 100 others"):
        RegistryCodec(registry.url, subject="s0").load()


def test_protobuf_files_that_import_each_other(registry: Registry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    other = descriptor_pb2.FileDescriptorProto(name="b.proto", dependency=["b.proto"])
    itself = {"name": "b.proto", "subject": "b", "version": 1}
    registry.add("b", base64.b64encode(other.SerializeToString()).decode(), "PROTOBUF", [itself])
    number = registry.add_proto("orders-value", file.SerializeToString(), [itself])
    codec = RegistryCodec(registry.url, subject="orders-value")
    with pytest.raises(CodecError, match="schema 2 in the schema registry is no usable protobuf file"):
        codec.load()
    # Other bodies stay readable, and the schema is not requested for each body.
    for _ in range(3):
        with pytest.raises(CodecError, match="schema 2, which the body names, can't be used"):
            codec.decode(prefix(number) + b"\0")
    assert registry.requests.count("GET /subjects/b/versions/1?deleted=true") == 2


@pytest.mark.parametrize("text", ['syntax = "proto3"; // \u00fc', "AAAA", ""])
def test_a_protobuf_file_that_is_invalid(registry: Registry, text: str) -> None:
    registry.add("orders-value", text, "PROTOBUF")
    with pytest.raises((CodecError, ConfigError), match=r"no usable protobuf file|has no message"):
        RegistryCodec(registry.url, subject="orders-value").load()


def test_a_protobuf_value_without_a_required_field(registry: Registry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop")
    file.message_type.add(name="Order").field.add(name="what", number=1, type=9, label=2, json_name="what")
    registry.add_proto("orders-value", file.SerializeToString())
    codec = RegistryCodec(registry.url, subject="orders-value")
    value = RegistryCodec(registry.url).decode(codec.encode({"what": "a"}))
    value.ClearField("what")
    with pytest.raises(CodecError, match="what"):
        codec.encode(value)


def test_bodies_that_cannot_be_decoded(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    codec = RegistryCodec(registry.url)
    with pytest.raises(CodecError, match=r"no byte 0 and id of a schema .*another codec"):
        codec.decode(b'{"a": 1}')
    for _ in range(3):
        with pytest.raises(CodecError, match="no schema 7, which the body names"):
            codec.decode(prefix(7) + b"x")
    assert registry.requests == ["GET /schemas/ids/7"]
    with pytest.raises(CodecError, match="no Order of this Avro schema"):
        codec.decode(prefix(1) + b"\xff")


def test_a_subject_that_does_not_exist(registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"no schema of subject none: register a schema, or give another subject"):
        RegistryCodec(registry.url, subject="none").load()
    with pytest.raises(ConfigError, match="without a subject only decodes"):
        RegistryCodec(registry.url).load()


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>no registry</html>",
        b"[]",
        b'{"schema": 1}',
        b"[" * 100_000,
        b'{"schema": "\xff", "id": 1}',
        # Bodies have four bytes for the id.
        b'{"schema": "\\"int\\""}',
        b'{"schema": "\\"int\\"", "id": -1}',
        b'{"schema": "\\"int\\"", "id": 4294967296}',
    ],
    ids=range(8),
)
def test_an_answer_that_is_no_schema(registry: Registry, answer: bytes) -> None:
    registry.fails.append((200, answer))
    with pytest.raises(ConfigError, match="doesn't respond like a schema registry"):
        RegistryCodec(registry.url, subject="orders-value").load()


def test_a_field_that_nests_deeply(registry: Registry) -> None:
    """An unknown field is skipped. Before Python 3.14, its depth exceeds the limit of recursion."""
    nested = b"[" * 100_000 + b"]" * 100_000
    registry.fails.append((200, b'{"schema": "\\"int\\"", "id": 1, "version": 1, "more": ' + nested + b"}"))
    codec = RegistryCodec(registry.url, subject="orders-value")
    if sys.version_info < (3, 14):
        with pytest.raises(ConfigError, match="doesn't respond like a schema registry"):
            codec.load()
    else:
        codec.load()
        assert codec.encode(3) == b"\0\0\0\0\1\6"


@pytest.mark.parametrize("kind", ["XML", "AVRO", "JSON"])
def test_a_schema_that_is_invalid(registry: Registry, kind: str) -> None:
    registry.add("orders-value", "<xml>", kind)
    with pytest.raises(CodecError, match=r"schema 1"):
        RegistryCodec(registry.url, subject="orders-value").load()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"type": "array", "items": "null"}', "the schema has an array whose items take no bytes: .*"),
        ('"\\u001b[2J"', r"no Avro schema: .*\\x1b\[2J"),
    ],
)
def test_an_error_names_the_schema(registry: Registry, schema: str, problem: str) -> None:
    registry.add("orders-value", schema)
    wanted = rf"schema 1 in the schema registry can't be used: {problem}: register it anew"
    with pytest.raises(CodecError, match=wanted):
        RegistryCodec(registry.url, subject="orders-value").load()


def test_a_huge_type_of_a_schema_gives_a_short_error(registry: Registry) -> None:
    registry.add("orders-value", "x", "\x1bX" * 100_000)
    with pytest.raises(CodecError) as e:
        RegistryCodec(registry.url, subject="orders-value").load()
    assert len(str(e.value)) < 1000
    assert str(e.value).isprintable()


def test_a_huge_answer(registry: Registry) -> None:
    registry.endless = b"HTTP/1.1 200 OK\r\n\r\n ", 0
    with pytest.raises(ConfigError, match="more than 16777216 bytes"):
        RegistryCodec(registry.url, subject="orders-value").load()


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\n\r\n "], ids=["hung", "slow"])
def test_a_registry_that_hangs_is_given_up(registry: Registry, begin: bytes) -> None:
    registry.endless = begin, 0.05
    settings = RegistrySettings((registry.url,), request_timeout_s=0.3, retry_timeout_s=0.0)
    began = time.monotonic()
    with pytest.raises(ClientError, match=r"no complete response within 0.3 s"):
        RegistryCodec(settings, subject="orders-value").load()
    assert time.monotonic() - began < 10


def test_credentials_do_not_follow_a_redirect(registry: Registry) -> None:
    with running_registry() as other:
        registry.fails.append((302, f"{other.url}/subjects/orders-value/versions/latest".encode()))
        settings = RegistrySettings((registry.url,), user_info="user:secret")
        with pytest.raises(ConfigError, match=r"redirects to .*: use that address") as raised:
            RegistryCodec(settings, subject="orders-value").load()
        assert other.requests == []
        assert "secret" not in str(raised.value)
        assert "secret" not in repr(settings)


def test_credentials(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    registry.authorization = f"Basic {base64.b64encode(b'user:secret').decode()}"
    settings = RegistrySettings((registry.url,), user_info="user:secret")
    RegistryCodec(settings, subject="orders-value").load()
    with pytest.raises(ConfigError, match="refuses: 401"):
        RegistryCodec(replace(settings, user_info=None), subject="orders-value").load()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "missing"),
        ("localhost:8081", "is no address like"),
        ("http://a:secret@host", "go into user_info"),
        ("http://[::1", "is no address like"),
        ("http://host:8081x", "is no address like"),
        ("http://host:99999", "is no address like"),
        ("http://ä..b", "is no address like"),
        ("http://host\x00", "is no address like"),
        ("http://host/?a=b", "is no address like"),
        ("ftp://a:secret@host", "go into user_info"),
        ("http://a:secret@[::1", "is no address like"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        RegistryCodec(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"user_info": "secret"}, "the form is user:password"),
        ({"token": ""}, "the token is empty"),
        ({"token": "secret\n"}, "characters other than ASCII's"),
        ({"token": "secr\u00e4t"}, "characters other than ASCII's"),
        ({"token": "secret", "user_info": "user:secret"}, "only one of the two"),
        ({"key": Path("secret")}, "a key needs its certificate"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        RegistrySettings(("http://host",), **settings)
    assert "secr" not in str(raised.value)


def test_two_users_of_one_address_have_their_own_schemas(registry: Registry) -> None:
    """Providers have one address for several registries: the credentials select the registry."""
    registry.add("orders-value", '"string"')
    settings = RegistrySettings((registry.url,), token="a")
    assert RegistryCodec(settings).decode(prefix(1) + b"\x02a") == "a"
    registry.schemas[0] |= {"schema": '"int"'}
    assert RegistryCodec(settings).decode(prefix(1) + b"\x02a") == "a"
    assert RegistryCodec(replace(settings, token="b")).decode(prefix(1) + b"\x02") == 1


@pytest.mark.parametrize("answer", [b"<html>not found</html>", b'{"error_code": 404, "message": "HTTP 404"}', b"[]"])
def test_a_server_without_registry_is_no_corrupt_body(registry: Registry, answer: bytes) -> None:
    """The address has another server, or lacks a path such as /apis/ccompat/v7."""
    registry.fails.append((404, answer))
    with pytest.raises(ConfigError, match="doesn't respond like a schema registry: 404"):
        RegistryCodec(registry.url).decode(prefix(1) + b"x")


def test_registries_that_send_null(registry: Registry) -> None:
    registry.fails.append((200, b'{"schema": "\\"int\\"", "id": 7, "schemaType": null, "references": null}'))
    assert RegistryCodec(registry.url, subject="s").encode(1) == prefix(7) + b"\x02"


def test_an_error_text_stays_on_one_line(registry: Registry) -> None:
    registry.fails.append((400, b'{"message": "\\u001b[2Jall\\nis well' + b"x" * 1000 + b'"}'))
    with pytest.raises(ConfigError) as raised:
        RegistryCodec(registry.url).decode(prefix(1))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


async def test_a_handler_does_not_block_the_event_loop(registry: Registry) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    body = RegistryCodec(registry.url, subject="orders-value").encode(FULL)
    registry.endless = b"HTTP/1.1 200 OK\r\n\r\n ", 0.05
    settings = RegistrySettings((registry.url,), request_timeout_s=1.0, retry_timeout_s=0.0)
    values: list[Any] = []

    async def handle(value: Any, message: MessageExt) -> None:
        values.append(value)

    handler = RegistryCodec(settings).handler(handle)
    message = received(body)
    task = asyncio.ensure_future(handler(message))  # type: ignore[arg-type]
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    with pytest.raises(ClientError, match="doesn't respond"):
        await task
    assert ticks > 5
    registry.endless = None
    await RegistryCodec(registry.url).handler(handle)(message)  # type: ignore[misc]
    assert values == [FULL]


async def test_other_ids_do_not_block_the_event_loop(registry: Registry) -> None:
    """The registry has no schema 7, and hangs when schema 8 is requested."""

    async def handle(value: Any, message: MessageExt) -> None: ...

    codec = RegistryCodec(RegistrySettings((registry.url,), request_timeout_s=60.0, retry_timeout_s=0.0))
    handler = codec.handler(handle)
    for _ in range(2):
        with pytest.raises(CodecError, match=r"message ID1 at .*no schema 7"):
            await handler(received(prefix(7)))  # type: ignore[misc]
    registry.endless = b"HTTP/1.1 200 OK\r\n\r\n ", 0.05
    tasks = [asyncio.ensure_future(handler(received(prefix(number)))) for number in (8, 7, 9)]  # type: ignore[arg-type]
    await until(lambda: "GET /schemas/ids/8" in registry.requests)
    for _ in range(100):
        await asyncio.sleep(0)
    # A blocked loop would get here after the timeout of the request.
    assert not tasks[0].done()
    codec.close()
    with pytest.raises(ClientClosed):
        await tasks[0]
    await asyncio.wait(tasks)
    with pytest.raises(ClientClosed):
        await handler(received(prefix(10)))  # type: ignore[misc]


async def test_close_ends_a_request(registry: Registry) -> None:
    registry.endless = b"", 0.05
    codec = RegistryCodec(RegistrySettings((registry.url,), request_timeout_s=60.0))
    task = asyncio.ensure_future(codec.value_async(received(prefix(1))))
    await until(lambda: registry.requests)
    codec.close()
    with pytest.raises(ClientClosed, match="create a new codec"):
        await task
    with pytest.raises(ClientClosed, match="create a new codec"):
        codec.decode(prefix(1))


def test_a_garbage_collection_does_not_wait(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can begin in a thread with a lock that the closing of connections needs."""
    closes, may_close = Event(), Event()
    close = httpx.AsyncClient.aclose

    async def slow_close(client: httpx.AsyncClient) -> None:
        closes.set()
        may_close.wait()
        await close(client)

    monkeypatch.setattr(httpx.AsyncClient, "aclose", slow_close)
    registry.add("orders-value", '"string"')
    codec = RegistryCodec(registry.url, subject="orders-value")
    codec.load()
    del codec
    gc.collect()
    assert closes.wait(20)
    assert registry.open
    may_close.set()
    wait_until(lambda: not registry.open)


def test_threads_do_not_wait_for_a_timeout_each(registry: Registry) -> None:
    registry.endless = b"", 0.05
    codec = RegistryCodec(RegistrySettings((registry.url,), request_timeout_s=1.0, retry_timeout_s=0.0))
    errors: list[ClientError] = []

    def decode(number: int) -> None:
        try:
            codec.decode(prefix(number))
        except ClientError as e:
            errors.append(e)

    threads = [Thread(target=decode, args=(number,)) for number in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 20
    # All threads start within the timeout of the first request; on a busy machine, within that of a later one.
    assert len(registry.requests) < 10
    # A later call sends a request again.
    count = len(registry.requests)
    with pytest.raises(ClientError, match="doesn't respond"):
        codec.decode(prefix(1))
    assert len(registry.requests) == count + 1


def test_a_registry_that_is_down_is_no_corrupt_body(registry: Registry) -> None:
    """A program that leaves out corrupt bodies must not leave out these."""
    settings = RegistrySettings((registry.url,), retry_timeout_s=0.0)
    registry.fails.append((503, b""))
    with pytest.raises(ClientError) as raised:
        RegistryCodec(settings).value(received(prefix(1) + b"x"))
    assert not isinstance(raised.value, CodecError)
