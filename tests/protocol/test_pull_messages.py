"""Tests that decode_pull_request and encode_pull_head, which are fast paths, agree with the general code."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_caches import pull_fields

from gantrymq.errors import HeaderError
from gantrymq.protocol.binary_header import encode_fields
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.private_fields import REASON_FIELD, TOPIC_BEGIN_FIELD
from gantrymq.protocol.pull_request import decode_pull_request
from gantrymq.protocol.pull_response import encode_pull_head

USUAL = {
    "consumerGroup": "group",
    "topic": "topic",
    "queueId": "3",
    "queueOffset": "12345",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "commitOffset": "12000",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "1700000000123",
    "expressionType": "TAG",
}
#: Byte patterns that the fast path searches for, placed in other fields.
LURES = [
    "\x00\x0bqueueOffset\x00\x00\x00\x017",
    "\x00\x0ccommitOffset\x00\x00\x00\x017",
    "\x00\x0bqueueOffset\x00\x00\x00\x017\x00\x0ccommitOffset\x00\x00\x00\x017",
]
TEXT = st.one_of(st.text(min_size=1), st.sampled_from(LURES), st.sampled_from(["中文", "null", "0", "true"]))
NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64).map(str), st.sampled_from(["", "-1", "0", "007", "+1", "1.0", "x", "9" * 300])
)


def request(ext: bytes) -> RemotingCommand:
    header = pack(">hBhiiii", RequestCode.PULL_MESSAGE, 0, 479, 1, 0, 0, len(ext)) + ext
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
    return command


def outcome(ext: bytes, *, plain: bool = False) -> PullMessageRequestHeader | str:
    command = request(ext)
    try:
        return command.read_header(PullMessageRequestHeader) if plain else decode_pull_request(command)
    except HeaderError:
        return "HeaderError"


@given(st.lists(st.fixed_dictionaries({"queueOffset": NUMBERS, "commitOffset": NUMBERS}), min_size=1, max_size=4))
def test_a_consumers_next_pulls(changes: list[dict[str, str]]) -> None:
    for change in changes:
        ext = encode_fields(USUAL | change)
        assert outcome(ext) == outcome(ext, plain=True)


@given(st.dictionaries(st.sampled_from(list(USUAL)), TEXT, max_size=4), st.permutations(list(USUAL)))
def test_any_values_in_any_order(changes: dict[str, str], order: list[str]) -> None:
    fields = USUAL | changes
    for names in (list(USUAL), order, list(USUAL)):
        ext = encode_fields({name: fields[name] for name in names})
        assert outcome(ext) == outcome(ext, plain=True)


@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    ext = encode_fields(USUAL)
    outcome(ext)
    at = data.draw(st.integers(0, len(ext) - 1))
    damaged = ext[:at] + bytes([data.draw(st.integers(0, 255))]) + ext[at + 1 :]
    assert outcome(damaged) == outcome(damaged, plain=True)
    assert outcome(ext[:at]) == outcome(ext[:at], plain=True)


def test_a_header_is_the_callers_own() -> None:
    ext = encode_fields(USUAL)
    for _ in range(3):
        header = decode_pull_request(request(ext))
        assert header.queue_offset == 12345
        header.queue_offset = -1
        header.subscription = "changed"


def test_what_is_remembered_is_bounded() -> None:
    for number in range(5000):
        decode_pull_request(request(encode_fields(USUAL | {"subscription": f"tag{number}"})))
    decode_pull_request(request(encode_fields(USUAL | {"subscription": "x" * 2000})))
    assert 0 < len(pull_fields) <= 4096
    assert max(sum(map(len, parts)) for parts in pull_fields) <= 1024


@pytest.mark.parametrize("encoding", SerializeType)
@given(
    offsets=st.tuples(*[st.integers(-1, 2**63 - 1)] * 4),
    opaque=st.integers(-(2**31), 2**31 - 1),
    body=st.binary(max_size=50),
    fields=st.dictionaries(st.sampled_from([TOPIC_BEGIN_FIELD, REASON_FIELD]), st.sampled_from(["7", "GONE"])),
)
def test_the_head_of_an_answer(
    encoding: SerializeType, offsets: tuple[int, int, int, int], opaque: int, body: bytes, fields: dict[str, str]
) -> None:
    head = encode_pull_head(encoding, opaque, 20, "NO_MATCHED_MESSAGE", *offsets, len(body), fields)
    (command,) = FrameReader().feed(head + body)
    suggested, following, lowest, highest = offsets
    header = PullMessageResponseHeader(
        suggest_which_broker_id=suggested, next_begin_offset=following, min_offset=lowest, max_offset=highest
    )
    expected = RemotingCommand.response(20, "NO_MATCHED_MESSAGE", header, body, fields=dict(fields))
    expected.opaque, expected.serialize_type = opaque, encoding
    assert {name: command.ext_fields[name] for name in fields} == fields
    assert (command.code, command.opaque, command.remark, command.body) == (20, opaque, "NO_MATCHED_MESSAGE", body)
    assert head + body == expected.encode()
