from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.send_response import SendResponses, decode_send_response

HOST = encode_host("127.0.0.1", 10911)
OFFSETS = st.integers(0, 2**63 - 1)


def received(frame: bytes) -> RemotingCommand:
    (response,) = FrameReader().feed(frame)
    return response


@given(
    serialize_type=st.sampled_from(SerializeType),
    physical=OFFSETS,
    queue=st.integers(0, 2**31 - 1),
    offset=OFFSETS,
    unique_id=st.sampled_from(["", "7F000001000000000000000000000001", 'a"\\b\n', "日本"]),
)
def test_says_what_a_typed_header_does(
    serialize_type: int, physical: int, queue: int, offset: int, unique_id: str
) -> None:
    responses = SendResponses(HOST, "moon", False)
    response = received(responses.encode(serialize_type, 7, physical, queue, offset, unique_id.encode()))
    header = response.read_header(SendMessageResponseHeader)
    assert header.transaction_id == (unique_id or None)
    assert (header.queue_id, header.queue_offset) == (queue, offset)
    assert (header.msg_region, header.trace_on) == ("moon", "false")
    plain = decode_send_response(response, queue)
    if serialize_type == SerializeType.ROCKETMQ:
        assert plain == (header.msg_id, offset, unique_id or None, "moon", False)
    else:
        assert plain is None


def test_a_server_that_says_nothing_of_traces() -> None:
    response = RemotingCommand.response(fields={"msgId": "id", "queueId": "1", "queueOffset": "2"})
    response.serialize_type = SerializeType.ROCKETMQ
    answer = received(response.encode())
    assert decode_send_response(answer, 1) == ("id", 2, None, "", True)
    response.ext_fields["msgId"] = ids = ",".join(["0" * 32] * 256)
    assert decode_send_response(received(response.encode()), 1) == (ids, 2, None, "", True)
    # The response is for another queue than the requested one.
    assert decode_send_response(answer, 2) is None
    assert decode_send_response(answer, 11) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"msgId": "id"},
        {"msgId": "id", "queueId": "1"},
        {"queueId": "1", "msgId": "id", "queueOffset": "2"},
        {"msgId": "id", "queueId": "1", "queueOffset": "2", "transactionId": "x" * 256},
        {"msgId": "id", "queueId": "1", "queueOffset": "2", "recallHandle": "x"},
        {"msgId": "id", "queueId": "one", "queueOffset": "2"},
        {"msgId": "id", "queueId": "1", "queueOffset": "-2"},
        {"msgId": "id", "queueId": "1" * 300, "queueOffset": "2"},
        {"msgId": "id" * 40_000, "queueId": "1", "queueOffset": "2"},
        {"msgId": "id", "queueId": "1", "queueOffset": "2" * 300},
    ],
)
def test_other_shapes_are_left_to_the_typed_header(fields: dict[str, str]) -> None:
    response = RemotingCommand.response(fields=fields)
    response.serialize_type = SerializeType.ROCKETMQ
    assert decode_send_response(received(response.encode()), 1) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_not(tail: bytes) -> None:
    response = RemotingCommand(0, 0, 0, 0, 1, None, b"\x00\x05msgId" + tail, b"", SerializeType.ROCKETMQ)
    decode_send_response(response, 1)
