"""Hostile requests for every code of a server, derived from the fields that its handlers read.

`learn` observes a server in this process: the header class and the JSON type of the body that each handler decodes.
New request codes are thus attacked automatically.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from unittest import mock

import msgspec

from gantrymq.protocol import fastjson
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.receipt_handle import ReceiptHandle
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

#: Plausible values of header fields and JSON fields, by their name in Python or in JSON.
_PLAUSIBLE = {
    "topic": "orders",
    "default_topic": "TBW102",
    "expression_type": "TAG",
    "exp_type": "TAG",
    "exp": "*",
    "batch": False,
    "order": False,
    "unit_mode": False,
    "max_num": 32,
    "end_timestamp": 1 << 62,
    "boundary_type": "LOWER",
    "stats_name": "TOPIC_PUT_NUMS",
    "stats_key": "orders",
    "attributes": "+message.type=NORMAL",
    "invisible_time": 1000,
    "policy_type": "CUSTOM",
    "resource": "Topic:orders",
    "subscription": "*",
    "message_model": "CLUSTERING",
    "mode": "PULL",
    "strategy_name": "AVG",
    "topic_filter_type": "SINGLE_TAG",
    "client_id": "attacker@1",
    "clientID": "attacker@1",
    "broker_name": "broker-a",
    "brokerName": "broker-a",
    "cluster_name": "DefaultCluster",
    "cluster": "DefaultCluster",
    "broker_addr": "127.0.0.1:1",
    "ha_server_addr": "127.0.0.1:2",
    "msg_id": encode_offset_message_id(encode_host("127.0.0.1", 10911), 0),
    "extra_info": str(ReceiptHandle(0, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 0, 0)),
    "born_timestamp": 1_700_000_000_000,
    "perm": 6,
    "max_msg_nums": 1,
    "read_queue_nums": 1,
    "write_queue_nums": 1,
    "default_topic_queue_nums": 1,
    "properties": "a\x01b\x02",
    "username": "somebody",
    "subject": "User:somebody",
}

#: Hostile values for texts, numbers, times and offsets. None removes the field.
TEXTS = (
    None,
    "",
    "-1",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "9" * 5000,
    "1e3",
    "NaN",
    "true",
    "x" * 32_768,
    "a\n2026-01-01 00:00:00,000 ERROR gantrymq.broker.broker: forged\r\n",
    "\x00",
    "a\x01b\x02c\x01",
    "\x85\u2028\u202e\x1b[2J",
    "../../escaped",
    "../../../escaped",
    "%s%d{}{0}${jndi:ldap://x}",
    "%RETRY%" + "x" * 300,
    "\U0001f600",
)
#: Bytes that are not valid text in either header encoding.
NO_TEXTS = (b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800")
BODIES = (
    b"\x00" * 40,
    b"\x00" * (4 << 20),
    b"1" * (1 << 20),
    b"not JSON",
    b"[]",
    b"{}",
    b"null",
    b"1e999999999",
    b'"' + b"x" * 32_768 + b'"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"topic":"' + b"\xff" * 100 + b'"}',
    b"{" + b",".join(b'"%d":1' % i for i in range(50_000)) + b"}",
    b"key=value\n" * 1000,
)
#: Hostile values for the fields of a JSON body.
_LEAVES = (
    None,
    -1,
    0,
    (1 << 31) - 1,
    (1 << 63) - 1,
    1 << 64,
    1.5,
    True,
    "",
    "a\n2026-01-01 00:00:00,000 ERROR gantrymq.broker.broker: forged",
    "\x00",
    "a\x01b\x02c",
    "\ud800",
    "x" * 32_768,
    "9" * 5000,
    "../../escaped",
    [],
    [[]],
    {},
    {"": None},
)
#: Placeholder for a number of 5,000 digits, which `json` does not write.
_DIGITS = "5000 digits"
_LONG_LIST = 10_000
_LARGE = 15_000_000

_I16, _I32 = Struct(">h"), Struct(">i")
_BINARY = Struct(">hBhiiii")


@dataclass
class Known:
    """The fields and the body that the handler of `code` reads.

    `fields` are header fields with a plausible value each. `body` is the JSON of the body.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    body_type: object = None


@dataclass(frozen=True)
class Request:
    """One request. `what` describes its error."""

    code: int
    what: str
    fields: Mapping[str, str | bytes]
    body: bytes = b""

    def frame(self, opaque: int, *, binary: bool = False) -> bytes:
        header = self._binary_header(opaque) if binary else self._json_header(opaque)
        return _I32.pack(4 + len(header) + len(self.body)) + _I32.pack(binary << 24 | len(header)) + header + self.body

    def _json_header(self, opaque: int) -> bytes:
        fields = b",".join(
            b'"%b":%b' % (name.encode(), b'"%b"' % value if isinstance(value, bytes) else json.dumps(value).encode())
            for name, value in self.fields.items()
        )
        return b'{"code":%d,"flag":0,"language":"JAVA","opaque":%d,"version":479,"extFields":{%b}}' % (
            self.code,
            opaque,
            fields,
        )

    def _binary_header(self, opaque: int) -> bytes:
        fields = b""
        for name, value in self.fields.items():
            data = value if isinstance(value, bytes) else value.encode()
            fields += _I16.pack(len(name)) + name.encode() + _I32.pack(len(data)) + data
        return _BINARY.pack(self.code, 0, 479, opaque, 0, 0, len(fields)) + fields


# -- fields and bodies of handlers ------------------------------------------------------------------------------


async def learn(handlers: dict[int, RequestHandler], ask: Callable[[Request], typing.Awaitable[object]]) -> list[Known]:
    """Returns the fields and bodies that the handlers of a running server read.

    `ask` sends a request to the server and returns when it was handled.
    """
    seen: list[object] = []
    original = dict(handlers)

    def recorded(handler: RequestHandler) -> RequestHandler:
        def record(connection: Connection, request: RemotingCommand) -> Reply:
            with (
                mock.patch.object(RemotingCommand, "read_header", read_header),
                mock.patch.object(fastjson.msgspec.json, "decode", decode),
            ):
                return handler(connection, request)

        return record

    real_read, real_decode = RemotingCommand.read_header, msgspec.json.decode

    def read_header(self: RemotingCommand, header_type: type[Header]) -> Header:
        seen.append(header_type)
        return real_read(self, header_type)

    def decode(data: bytes, **options: typing.Any) -> object:
        seen.append(options.get("type"))
        return real_decode(data, **options)

    known = []
    try:
        for code, handler in original.items():
            handlers[code] = recorded(handler)
        for code in sorted(original):
            one = Known(code)
            known.append(one)
            # Each round gets further in the handler, to the fields that it reads next.
            for _ in range(4):
                seen.clear()
                await ask(Request(code, "plausible", one.fields, one.body or b"{}"))
                for found in seen:
                    _take(one, found)
    finally:
        handlers.update(original)
    return known


def _take(known: Known, found: object) -> None:
    if isinstance(found, type) and issubclass(found, Header):
        hints = typing.get_type_hints(found)
        for name, wire_name in zip(found.__struct_fields__, found.__struct_encode_fields__, strict=True):
            known.fields.setdefault(wire_name, _text(_example(name, hints[name])))
    elif found is not None and known.body_type is None and not issubclass(typing.get_origin(found) or found, Header):
        known.body_type = found
        known.body = json.dumps(_example("", found)).encode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _example(name: str, kind: typing.Any) -> typing.Any:
    """Returns a plausible value of this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _example(name, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _example(name, next(one for one in arguments if one is not type(None)))
    if origin in (list, set, frozenset, tuple):
        return [_example(name, arguments[0])]
    if origin is dict:
        return {str(_example("key", arguments[0])): _example(name, arguments[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return {wire: _example(field_name, hints[field_name]) for field_name, wire in names}
    if name in _PLAUSIBLE:
        return _PLAUSIBLE[name]
    if kind is bool:
        return True
    if kind in (int, float):
        return 0
    return "attackers" if "group" in name else "x"


# -- attacks ----------------------------------------------------------------------------------------------------


def hostile_fields(known: Known) -> Iterator[Request]:
    """Yields requests with one missing or hostile field each. The other fields are valid."""
    yield Request(known.code, "no fields", {})
    for name in known.fields:
        for value in TEXTS:
            fields: dict[str, str | bytes] = dict(known.fields)
            if value is None:
                del fields[name]
            else:
                fields[name] = value
            yield Request(known.code, f"{name}={'missing' if value is None else value[:40]!r}", fields, known.body)


def unreadable_fields(known: Known) -> Iterator[Request]:
    """Yields requests with invalid text in one field.

    The server may close the connection, because the header is unreliable.
    """
    for name in known.fields:
        for value in NO_TEXTS:
            yield Request(known.code, f"{name}={value!r}", {**known.fields, name: value}, known.body)


def hostile_bodies(known: Known) -> Iterator[Request]:
    """Yields requests with hostile bodies. If the body's type is known, each of its parts is replaced in turn."""
    for body in BODIES:
        yield Request(known.code, f"body of {len(body)} bytes: {body[:20]!r}", known.fields, body)
    if known.body_type is None:
        return
    example = json.loads(known.body)
    for path in _paths(example):
        for leaf in _LEAVES:
            body = json.dumps(_changed(example, path, leaf)).encode()
            yield Request(known.code, f"body {path}={str(leaf)[:40]!r}", known.fields, body)
        digits = json.dumps(_changed(example, path, _DIGITS)).replace(f'"{_DIGITS}"', "9" * 5000)
        yield Request(known.code, f"body {path}={_DIGITS}", known.fields, digits.encode())
        if isinstance(at(example, path), list):
            many = _changed(example, path, at(example, path) * _LONG_LIST)
            yield Request(known.code, f"body {path}={_LONG_LIST} times", known.fields, json.dumps(many).encode())


def large_bodies(known: Known) -> Iterator[Request]:
    """Yields requests with bodies of the largest frame size that take long to decode or to process.

    If the type of the body is known, they are JSON.
    """
    if known.body_type is None:
        return
    for what, piece in (
        ("zeros", b"\x00"),
        ("bare keys", b"{1:"),
        ("quotes", b'"'),
        ("digits", b"1"),
        ("commas", b"[1,"),
    ):
        yield Request(known.code, f"15 MB of {what}", known.fields, piece * (_LARGE // len(piece)))
    example = json.loads(known.body)
    for path in _paths(example):
        part = at(example, path)
        if isinstance(part, list):
            count = _LARGE // 2 // len(json.dumps(part[0]))
            many = json.dumps(_changed(example, path, ["#"])).replace('"#"', ",".join([json.dumps(part[0])] * count))
            yield Request(known.code, f"{path}: {count} times", known.fields, many.encode())
        elif isinstance(part, str):
            long = json.dumps(_changed(example, path, "x" * _LARGE)).encode()
            yield Request(known.code, f"{path}: 15 MB of text", known.fields, long)


def _paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from _paths(child, (*path, name))


def at(value: typing.Any, path: tuple[str | int, ...]) -> typing.Any:
    for name in path:
        value = value[name]
    return value


def _changed(value: typing.Any, path: tuple[str | int, ...], leaf: object) -> typing.Any:
    if not path:
        return leaf
    first, *rest = path
    copy = value.copy()
    copy[first] = _changed(value[first], tuple(rest), leaf)
    return copy
