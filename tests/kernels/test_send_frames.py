"""Requests and responses of sends in native code: as in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.producing.send_command import constant_fields, plain_frame, send_command, send_frame
from gantrymq.kernels import native
from gantrymq.protocol.command import SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.send_response import SendResponses, decode_send_response

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't installed")

HOST = encode_host("127.0.0.1", 10911)
QUEUE = MessageQueue("orders", "broker-a", 3)


@given(
    opaque=st.integers(0, 2**31 - 1),
    born=st.integers(0, 2**62),
    properties=st.binary(max_size=300),
    body=st.binary(max_size=300),
)
def test_a_request_is_that_of_a_command(opaque: int, born: int, properties: bytes, body: bytes) -> None:
    before, after = constant_fields("group", QUEUE, "TBW102", 4, False, 0, False, 0, None, 3000)
    command = send_command("group", QUEUE, body, properties, born)
    command.opaque = opaque
    assert send_frame(before, after, opaque, born, properties, body) == command.encode()


@given(
    opaque=st.integers(0, 2**31 - 1),
    born=st.integers(0, 2**62),
    head=st.sampled_from(["", "7F000001000000000000000000AB"]),
    number=st.integers(0, 0xFFFF),
    body=st.binary(max_size=300),
)
def test_a_plain_request_has_the_id_as_its_property(
    opaque: int, born: int, head: str, number: int, body: bytes
) -> None:
    before, after = constant_fields("group", QUEUE, "TBW102", 4, False, 0, False, 0, None, 3000)
    frame, msg_id = plain_frame(before, after, opaque, born, head, number, body)
    assert msg_id == f"{head}{number:04X}"
    assert frame == send_frame(before, after, opaque, born, encode_properties({"UNIQ_KEY": msg_id}), body)


@given(
    serialize_type=st.sampled_from(SerializeType),
    numbers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**63 - 1)), max_size=4),
    unique_id=st.sampled_from([b"", b"7F000001000000000000000000000001", "\u65e5".encode(), b"\xff"]),
    change=st.tuples(st.integers(0, 1000), st.integers(0, 255)) | st.none(),
    cut=st.integers(0, 20),
)
def test_responses_are_those_that_python_decodes(
    serialize_type: int,
    numbers: list[tuple[int, int]],
    unique_id: bytes,
    change: tuple[int, int] | None,
    cut: int,
) -> None:
    assert native is not None
    responses = SendResponses(HOST, "moon", False)
    frames = [
        responses.encode(serialize_type, n, offset, queue, offset, unique_id)
        for n, (queue, offset) in enumerate(numbers)
    ]
    data = bytearray(b"".join(frames))
    if change is not None and data:
        data[change[0] % len(data)] = change[1]
    whole = bytes(data[: max(len(data) - cut, 0)])
    found = native.send_responses(whole)
    if change is None and serialize_type == SerializeType.ROCKETMQ and unique_id != b"\xff":
        assert len(found) == (len(frames) if not cut else max(len(frames) - 1, 0))
    commands = FrameReader().feed(whole)
    for opaque, queue_id, queue_offset, offset_msg_id, transaction_id, tail, end in found:
        command = next(commands)
        assert (command.code, command.opaque, command.body) == (0, opaque, b"")
        plain = decode_send_response(command, queue_id)
        if plain is not None:
            assert plain[:3] == (offset_msg_id, queue_offset, transaction_id)
            assert command.raw_ext.endswith(tail)
        assert end <= len(whole)


def test_it_stops_before_other_frames() -> None:
    assert native is not None
    frame = SendResponses(HOST, "moon", True).encode(SerializeType.ROCKETMQ, 7, 8, 3, 9, b"")
    ((opaque, queue_id, queue_offset, _, transaction_id, _, end),) = native.send_responses(frame + frame[:-1])
    assert (opaque, queue_id, queue_offset, transaction_id, end) == (7, 3, 9, None, len(frame))
    assert native.send_responses(b"") == []
    request = send_command("group", QUEUE, b"body", b"", 0).encode()
    assert native.send_responses(request + frame) == []
    assert native.send_responses(b"\xff" * 40) == []
