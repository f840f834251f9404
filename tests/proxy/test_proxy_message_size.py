"""Memory of a message, calculated from its encoding.

Valid requests pass; others are rejected before they are decoded.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from proxy_support import message

from gantrymq.proxy.call import METHODS
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.message_size import (
    MessageTooLarge,
    NotAMessage,
    SizeLimit,
    memory_of,
    memory_of_built,
    most_memory_of,
    shape_of,
)
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

NO_LIMIT = SizeLimit(1 << 31, 1 << 31, 1 << 40)
LIMITS = MessageLimits(130 * 1024 * 1024, 4 * 1024 * 1024)


def field(number: int, payload: bytes = b"") -> bytes:
    """Returns a length-delimited field. The payload must be shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(payload))) + payload


def is_refused(method: str, data: bytes) -> bool:
    """Returns true if the message exceeds the rpc's limits before it is decoded."""
    kind = next(each for each in METHODS.values() if each.name == method)
    try:
        memory_of(data, shape_of(kind.request), LIMITS.of(kind))
    except MessageTooLarge:
        return True
    return False


@pytest.mark.parametrize(
    ("method", "element"),
    [
        ("AckMessage", field(3)),
        ("SendMessage", field(1)),
        ("SendMessage", field(1, field(3))),
        ("SendMessage", field(1, field(2))),
        ("SendMessage", field(1, field(15))),
        ("QueryRoute", field(2, field(2))),
        ("AckMessage", field(15) + field(3)),
        ("Heartbeat", b"\x10\x01"),
    ],
    ids=["entries", "messages", "system properties", "user properties", "unknown", "addresses", "mixed", "numbers"],
)
def test_elements_of_two_bytes(method: str, element: bytes) -> None:
    limit = next(LIMITS.of(each) for each in METHODS.values() if each.name == method)
    assert is_refused(method, element * (limit.encoded_bytes // len(element)))


@pytest.mark.parametrize(
    "request_",
    [
        rpc_pb.AckMessageRequest(
            entries=[rpc_pb.AckMessageEntry(message_id="0" * 32, receipt_handle="x" * 200)] * 4096
        ),
        rpc_pb.SendMessageRequest(
            messages=[
                message(
                    "topic",
                    b"x" * 900,
                    user_properties={"key": "value"},
                    tag="tag",
                    keys=["one"],
                    born_timestamp=Timestamp(seconds=1_700_000_000),
                    born_host="host",
                    body_digest=pb.Digest(type=pb.CRC32, checksum="ABCDEF01"),
                )
            ]
            * 4096
        ),
        rpc_pb.SendMessageRequest(messages=[message("topic", b"x" * 4 * 1024 * 1024)]),
        rpc_pb.TelemetryCommand(
            settings=pb.Settings(
                subscription=pb.Subscription(
                    subscriptions=[
                        pb.SubscriptionEntry(
                            topic=pb.Resource(name=f"topic {n}"),
                            expression=pb.FilterExpression(type=pb.TAG, expression="one || two"),
                        )
                        for n in range(10_000)
                    ]
                )
            )
        ),
    ],
    ids=["acknowledgements", "batch", "large body", "topics"],
)
def test_the_largest_requests_of_clients_pass(request_: Message) -> None:
    method = next(each for each in METHODS.values() if each.request is type(request_))
    data = request_.SerializeToString()
    assert len(data) <= LIMITS.of(method).encoded_bytes
    assert memory_of(data, shape_of(method.request), LIMITS.of(method)) > len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b" * 50 + b"\x0c" * 50,
        field(3)[:1],
        b"\x1a\x05ab",
        b"\x12\xff",
        b"\x08",
        b"\xff\xff\xff\xff\xff\xff\x01",
        b"\x1a\xff\xff\xff\xff\x7f",
        b"\x0d\x01",
        b"\x0f",
    ],
    ids=["groups", "no length", "short", "half a length", "no number", "tag", "length", "fixed", "wire type"],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(NotAMessage):
        memory_of(data + b"\x80" if data == b"\x08" else data, shape_of(rpc_pb.AckMessageRequest), NO_LIMIT)


def test_no_message_passes_that_protobuf_takes_apart_otherwise() -> None:
    """Random bytes: all elements that protobuf decodes have been counted."""
    chosen = random.Random(33)
    shape = shape_of(rpc_pb.SendMessageRequest)
    built = 0
    for _ in range(20_000):
        size = chosen.randrange(1, 40)
        data = bytes(chosen.choice(b"\x0a\x0a\x1a\x12\x22\x00\x01\x02\x04\x08\x80\x7a\x88") for _ in range(size))
        try:
            request = rpc_pb.SendMessageRequest.FromString(data)
        except DecodeError:
            continue
        built += 1
        try:
            memory = memory_of(data, shape, NO_LIMIT)
        except NotAMessage:
            # Only groups are valid for protobuf and rejected here.
            assert any(byte & 7 in (3, 4) for byte in data)
            continue
        inside = sum(1 + each.HasField("system_properties") + len(each.user_properties) for each in request.messages)
        assert memory >= len(data) + 70 * inside
        assert most_memory_of(size) > len(data) + 70 * inside
    assert built > 300


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        (rpc_pb.AckMessageRequest, field(3)),
        (rpc_pb.AckMessageRequest, field(3, field(1, b"x") + field(2, b"y"))),
        (rpc_pb.AckMessageRequest, field(15) + field(3)),
        (rpc_pb.SendMessageRequest, field(1)),
        (rpc_pb.SendMessageRequest, field(1, field(3))),
    ],
    ids=["entries", "handles", "unknown", "messages", "system properties"],
)
def test_the_memory_that_a_message_really_takes(kind: Any, element: bytes) -> None:
    data = element * 200_000
    before = resident()
    request = kind.FromString(data)
    taken = resident() - before
    expected = memory_of(data, shape_of(kind), NO_LIMIT)
    assert taken < 1.1 * expected + 4 * 1024 * 1024
    assert taken < most_memory_of(len(data)) + 4 * 1024 * 1024
    assert memory_of_built(request) > len(data)
