"""Fuzzers for input of clients: connections, header blocks, gRPC messages and fields of requests.

FUZZ_SECONDS is the CPU time of each fuzzer (2 s by default), FUZZ_SEED the seed of the first case. A failure names
the seed of its case.
"""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from calls import RecordedCall
from fuzz_support import REQUESTS, SECONDS, cases, chunks, connection, header_block, message, mutated
from google.protobuf.message import DecodeError
from transports import Keeping

from gantrymq.limits import PROXY_REQUESTS_BYTES
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.grpc_call import Service
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.connection import Http2Connection
from gantrymq.proxy.http2.hpack import HpackDecoder, HpackError, TooManyHeaders
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.message_size import MessageTooLarge, NotAMessage, memory_of, shape_of
from gantrymq.proxy.payload import PREFIX, Payload
from gantrymq.proxy.producer.message_encoder import MessageEncoder
from gantrymq.proxy.statuses import GrpcError, ProxyError
from gantrymq.proxy.telemetry import check_settings

pytestmark = pytest.mark.timeout(60 + 30 * SECONDS)

#: Limit for the memory growth of this process during a fuzzer, in KiB.
MOST_GROWTH_KIB = 64 * 1024
LIMITS = MessageLimits(8 * 1024 * 1024, 4 * 1024 * 1024)


@pytest.fixture(autouse=True)
def bounded_memory() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH_KIB


async def answer(call: Any, request: Any) -> Any:
    response = METHODS[f"/apache.rocketmq.v2.MessagingService/{call.method}"].response
    await asyncio.sleep(0)
    return response()


async def answer_as_stream(call: Any, request: Any) -> None:
    for _ in range(3):
        await call.write(await answer(call, request))


async def answer_each(call: Any) -> None:
    async for request in call.requests():
        await call.write(await answer(call, request))


def service() -> Service:
    handlers: dict[str, Any] = {}
    for method in METHODS.values():
        handlers[method.name] = (
            answer_each if method.client_streams else answer_as_stream if method.server_streams else answer
        )
    return Service(handlers, LIMITS)


async def idle(transport: Keeping) -> None:
    """Waits until the connection is read, and calls had time for their responses."""
    for _ in range(20):
        await asyncio.sleep(0)
    while not transport.is_read and not transport.closed:
        await asyncio.sleep(0)


def check_sent(data: bytes, *, closed: bool) -> None:
    """Asserts that the server sends complete frames, and GOAWAY before it closes."""
    last = None
    while data:
        length, _, _ = frames.read_header(data)
        last = length & 0xFF
        size = frames.HEADER_LENGTH + (length >> 8)
        assert len(data) >= size
        data = data[size:]
    if closed:
        assert last == frames.GOAWAY


async def test_connections(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    for seed, chance in cases():
        served = service()
        limits = Limits(served.unread, slices=served.slices)
        transport = Keeping()
        opened = Http2Connection(served.accept, limits, lambda _: None, lambda _: None)
        opened.connection_made(transport)
        try:
            for chunk in chunks(connection(chance), chance):
                if transport.closed:
                    break
                opened.data_received(chunk)
                assert served.request_memory.bytes <= 2 * PROXY_REQUESTS_BYTES
                if not transport.is_read or chance.random() < 0.2:
                    await idle(transport)
            await idle(transport)
            check_sent(transport.data, closed=transport.closed)
            opened.connection_lost(None)
            await idle(transport)
            assert served.request_memory.bytes == served.unread.bytes == served.incomplete_messages.buffered_bytes == 0
            assert limits.incomplete.bytes == 0
            assert not opened.streams
            assert not failures
            assert not [record for record in caplog.records if record.levelname == "ERROR"]
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise


def of_header_blocks(chance: random.Random) -> None:
    decoder = HpackDecoder()
    with suppress(HpackError, TooManyHeaders):
        for _ in range(5):
            block = header_block("SendMessage", chance, is_gzip=False)
            fields = decoder.decode(mutated(block, chance), 16 * 1024)
            assert sum(len(name) + len(value) + 32 for name, value in fields) <= 16 * 1024


def of_messages(chance: random.Random) -> None:
    """The memory of a message in protobuf is calculated correctly before it is decoded, or the message is rejected."""
    name = chance.choice([*REQUESTS])
    is_gzip = chance.random() < 0.5
    data = message(REQUESTS[name], chance, is_gzip=is_gzip)[PREFIX:]
    method = METHODS[f"/apache.rocketmq.v2.MessagingService/{name}"]
    limit = LIMITS.of(method)
    with suppress(GrpcError, NotAMessage, MessageTooLarge, DecodeError):
        plain = Payload(mutated(data, chance), is_gzip).plain(limit.encoded_bytes)
        memory = memory_of(plain, shape_of(method.request), limit)
        assert len(plain) <= memory <= len(plain) + limit.memory_bytes
        method.request.FromString(bytes(plain))


def of_fields(chance: random.Random) -> None:
    """Handlers check the fields of requests, and reject them only with their own errors."""
    encoder = MessageEncoder(ProxyConfig())
    name = chance.choice(("SendMessage", "AckMessage", "Telemetry"))
    data = mutated(REQUESTS[name].SerializeToString(), chance)
    try:
        request: Any = type(REQUESTS[name]).FromString(data)
    except DecodeError:
        return
    with suppress(ProxyError, GrpcError):
        if name == "SendMessage":
            for sent in request.messages:
                with suppress(ProxyError):
                    encoder.encode(sent, "127.0.0.1:50000")
        elif name == "AckMessage":
            for entry in request.entries:
                with suppress(ProxyError):
                    Handle.parse(entry.receipt_handle).check_time(0)
        else:
            asyncio.run(check_settings(RecordedCall(), request.settings))


@pytest.mark.parametrize("fuzz", [of_header_blocks, of_messages, of_fields])
def test_inputs(fuzz: Callable[[random.Random], None]) -> None:
    for seed, chance in cases():
        try:
            fuzz(chance)
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
