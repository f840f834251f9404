"""The fuzz targets of the proxy, the console and the schema registry. `targets` has those of other formats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fuzz.targets import target
from gantrymq.codecs.avro import AvroCodec
from gantrymq.codecs.registry.avro_schemas import avro_schema
from gantrymq.codecs.registry.client import Reference, RegisteredSchema, SchemaRegistry
from gantrymq.codecs.registry.protobuf_files import descriptor_set
from gantrymq.codecs.registry.settings import RegistrySettings
from gantrymq.console.changes.all_changes import CHANGES
from gantrymq.console.pages import BadArguments, arguments_of, parse_time
from gantrymq.errors import CodecError, ConfigError
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.grpc_call import Service
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.connection import Http2Connection
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.message_size import MessageTooLarge, NotAMessage, memory_of, shape_of
from gantrymq.proxy.payload import Payload
from gantrymq.proxy.producer.message_encoder import MessageEncoder
from gantrymq.proxy.statuses import GrpcError, ProxyError
from gantrymq.spark.bodies.avro_bodies import without_other_logical_types

_LIMITS = MessageLimits(8 * 1024 * 1024, 4 * 1024 * 1024)
_METHODS = list(METHODS.values())
#: Bytes of one read.
_READ = 100
#: Event-loop iterations in which calls have time for their responses.
_ITERATIONS = 20


@target
def http2(data: bytes) -> None:
    """The bytes of an HTTP/2 connection with gRPC calls.

    The server sends complete frames, sends GOAWAY before it closes, and releases the memory of all calls.
    """
    with asyncio.Runner() as runner:
        runner.run(_serve(data))


async def _serve(data: bytes) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    handlers: dict[str, Any] = {}
    for method in _METHODS:
        kind = _answer_each if method.client_streams else _answer_as_stream if method.server_streams else _answer
        handlers[method.name] = kind
    service = Service(handlers, _LIMITS)
    limits = Limits(service.unread, slices=service.slices)
    connection = Http2Connection(service.accept, limits, lambda _: None, lambda _: None)
    transport = _Transport()
    connection.connection_made(transport)
    for at in range(0, len(data), _READ):
        if transport.is_closing():
            break
        connection.data_received(data[at : at + _READ])
        await _idle(transport)
    _check_sent(bytes(transport.data), closed=transport.is_closing())
    connection.connection_lost(None)
    await _idle(transport)
    assert service.request_memory.bytes == service.unread.bytes == service.incomplete_messages.buffered_bytes == 0
    assert not connection.streams
    assert not failures, failures


async def _idle(transport: _Transport) -> None:
    for _ in range(_ITERATIONS):
        await asyncio.sleep(0)
    while not transport.is_read and not transport.is_closing():  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0)


def _check_sent(data: bytes, *, closed: bool) -> None:
    last = None
    while data:
        length, _, _ = frames.read_header(data)
        last = length & 0xFF
        size = frames.HEADER_LENGTH + (length >> 8)
        assert len(data) >= size, "the server sent a part of a frame"
        data = data[size:]
    assert not closed or last == frames.GOAWAY, "the server closed without GOAWAY"


async def _answer(call: Any, request: Any) -> Any:
    return METHODS[f"/apache.rocketmq.v2.MessagingService/{call.method}"].response()


async def _answer_as_stream(call: Any, request: Any) -> None:
    for _ in range(3):
        await call.write(await _answer(call, request))


async def _answer_each(call: Any) -> None:
    async for request in call.requests():
        await call.write(await _answer(call, request))


class _Transport(asyncio.Transport):
    """Stores the data written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 8081)})
        self.data = bytearray()
        self.is_read = True
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.data += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        self._closed = True


@target
def grpc_messages(data: bytes) -> None:
    """A message of the gRPC proxy. The first byte selects the method, the second one compression."""
    method = _METHODS[data[0] % len(_METHODS)] if data else _METHODS[0]
    limit = _LIMITS.of(method)
    try:
        plain = Payload(data[2:], data[1:2] == b"\x01").plain(limit.encoded_bytes)
        memory = memory_of(plain, shape_of(method.request), limit)
        assert len(plain) <= memory <= len(plain) + limit.memory_bytes
        request: Any = method.request.FromString(bytes(plain))
    except (GrpcError, NotAMessage, MessageTooLarge, DecodeError):
        return
    if method.name == "SendMessage":
        for sent in request.messages:
            with contextlib.suppress(ProxyError, GrpcError):
                _encoder().encode(sent, "127.0.0.1:50000")
    elif method.name == "AckMessage":
        for entry in request.entries:
            with contextlib.suppress(ProxyError, GrpcError):
                Handle.parse(entry.receipt_handle).check_time(0)


@cache
def _encoder() -> MessageEncoder:
    return MessageEncoder(ProxyConfig())


@target
def console_forms(data: bytes) -> None:
    """A form of the console, URL-encoded or multipart, as the arguments of each change. Its values are also times."""
    kind = b"multipart/form-data; boundary=b" if data.startswith(b"--b") else b"application/x-www-form-urlencoded"
    scope = {"type": "http", "method": "POST", "path": "/", "app": None, "headers": [(b"content-type", kind)]}
    received = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return received.pop()

    async def fields() -> dict[str, str]:
        async with Request(scope, receive).form(max_files=0, max_fields=100) as form:
            return {name: value for name, value in form.multi_items() if isinstance(value, str)}

    try:
        form = _completed(fields())
    except HTTPException:
        return
    for change in CHANGES:
        with contextlib.suppress(BadArguments):
            arguments_of(change.arguments, form)
    for value in form.values():
        with contextlib.suppress(BadArguments):
            parse_time(value)


def _completed(work: Coroutine[Any, Any, dict[str, str]]) -> dict[str, str]:
    """Returns the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as e:
        result: dict[str, str] = e.value
        return result
    raise AssertionError("it waits")


class _OneSchema(SchemaRegistry):
    """A registry that has one schema for every reference."""

    def __init__(self, schema: RegisteredSchema) -> None:
        super().__init__(RegistrySettings(("http://127.0.0.1:1",)))
        self._only = schema

    def referenced(self, reference: Reference, *, serialized: bool = False) -> RegisteredSchema:
        return RegisteredSchema(self._only.text, self._only.kind)


@target
def registry_responses(data: bytes) -> None:
    """A schema of a schema registry, as Avro and as protobuf."""
    try:
        schema = msgspec.json.decode(data, type=RegisteredSchema)
    except ValueError:
        return
    registry = _OneSchema(schema)
    decoders: tuple[Callable[[], object], ...] = (
        lambda: AvroCodec(without_other_logical_types(avro_schema(registry, schema, "the schema"))).decode(b"\x02a"),
        lambda: descriptor_set(registry, schema),
    )
    for decode in decoders:
        with contextlib.suppress(CodecError, ConfigError):
            decode()
