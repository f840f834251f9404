"""Tests that decode_send_request gives the same result with its cache as without, for any header."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_caches import clear_send_caches, send_targets

from gantrymq.errors import HeaderError
from gantrymq.protocol.binary_header import encode_fields
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from gantrymq.protocol.private_fields import TIMEOUT_FIELD
from gantrymq.protocol.send_request import SendRequest, decode_send_request

USUAL = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000123",
    "h": "0",
    "i": "TAGS\x01a\x02",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
}
#: Byte patterns that the fast path searches for, placed in other fields.
LURES = [
    "\x00\x01g\x00\x00\x00\x0d",
    "\x00\x01g\x00\x00\x00\x0d1700000000123\x00\x01h\x00\x00\x00\x010\x00\x01i",
    "\x01\x02",
]
TEXT = st.one_of(st.text(min_size=1), st.sampled_from(LURES), st.sampled_from(["中文", "null", "0", "true"]))


def request(ext: bytes, code: int = RequestCode.SEND_MESSAGE_V2) -> RemotingCommand:
    header = pack(">hBhiiii", code, 0, 479, 1, 0, 0, len(ext)) + ext
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
    return command


def outcome(decode: Callable[[RemotingCommand], SendRequest], command: RemotingCommand) -> SendRequest | str:
    try:
        return decode(command)
    except HeaderError:
        return "HeaderError"


def reading_every_field(command: RemotingCommand) -> SendRequest:
    clear_send_caches()
    return decode_send_request(command)


def check(ext: bytes, code: int = RequestCode.SEND_MESSAGE_V2) -> SendRequest | str:
    slow = outcome(reading_every_field, request(ext, code))
    # Fills the cache with this header, if it has the usual shape, and with the usual header.
    outcome(decode_send_request, request(encode_fields(USUAL)))
    fast = outcome(decode_send_request, request(ext, code))
    assert fast == slow
    return fast


fields = st.fixed_dictionaries(
    {
        "a": TEXT,
        "b": TEXT,
        "c": TEXT,
        "d": st.integers(-5, 2**31 - 1).map(str),
        "e": st.integers(-(2**31), 2**31).map(str),
        "f": st.integers(0, 1024).map(str),
        "g": st.one_of(st.just("1700000000123"), st.integers(0, 2**63).map(str), st.just("0000000000123"), TEXT),
        "h": st.one_of(st.just("0"), st.integers(-(2**31), 2**31).map(str)),
    },
    optional={
        "i": TEXT,
        "j": st.integers(0, 20).map(str),
        "k": st.sampled_from(["true", "false"]),
        "l": st.integers(0, 20).map(str),
        "m": st.sampled_from(["true", "false"]),
        "n": TEXT,
        "zz": TEXT,
        TIMEOUT_FIELD: st.one_of(st.integers(-5, 10**12).map(str), TEXT),
    },
)


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), st.one_of(TEXT, st.sampled_from(["0", "1"])), max_size=2))
def test_headers_near_the_usual_one(changes: dict[str, str]) -> None:
    check(encode_fields(USUAL | changes))


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE])
def test_the_same_bytes_under_another_code(code: int) -> None:
    assert (check(encode_fields(USUAL), code) == "HeaderError") == (code == RequestCode.SEND_MESSAGE)


@pytest.mark.parametrize("born", ["0000000000123", "1700000000 12", "+170000000012", "170000000012\u0663"])
def test_odd_timestamps(born: str) -> None:
    check(encode_fields(USUAL | {"g": born}))


@given(fields, st.sampled_from([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE]))
def test_any_header(header: dict[str, str], code: int) -> None:
    check(encode_fields(header), code)


@given(fields, st.randoms(use_true_random=False))
def test_any_order(header: dict[str, str], random: object) -> None:
    names = list(header)
    random.shuffle(names)  # type: ignore[attr-defined]
    check(encode_fields({name: header[name] for name in names}))


@given(st.data())
def test_cut_and_changed_headers(data: st.DataObject) -> None:
    ext = bytearray(encode_fields(USUAL))
    for _ in range(data.draw(st.integers(0, 3))):
        ext[data.draw(st.integers(0, len(ext) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(ext[: data.draw(st.integers(0, len(ext)))]))


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_bytes_before_and_behind(before: bytes, behind: bytes) -> None:
    check(before + encode_fields(USUAL) + behind)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize(
    ("value", "timeout_ms"),
    [("1", 1), ("5000", 5000), ("0", None), ("-5", None), ("1.5", None), ("\u0663", None), ("x", None), ("", None)]
    + [(digits * "9", 24 * 3600 * 1000) for digits in (9, 20, 20_000)],
)
def test_the_client_s_timeout(value: str, timeout_ms: int | None, code: int) -> None:
    sent = check(encode_fields(USUAL | {TIMEOUT_FIELD: value}), code)
    assert isinstance(sent, SendRequest)
    assert sent.options.timeout_ms == timeout_ms
    assert sent.properties == USUAL["i"].encode()


def test_the_usual_header_is_remembered() -> None:
    expected = SendRequest(
        ("group", "topic", "TBW102", 4, 0, 0), 1700000000123, 0, b"TAGS\x01a\x02", (0, False, 16, False, None)
    )  # type: ignore[arg-type]
    assert check(encode_fields(USUAL)) == expected

    later = decode_send_request(request(encode_fields(USUAL | {"g": "1700000000999", "i": "KEYS\x01中文\x02"})))
    assert later.born_timestamp == 1700000000999
    assert later.properties == "KEYS\x01中文\x02".encode()
    assert later.target is decode_send_request(request(encode_fields(USUAL))).target


def test_a_value_that_looks_like_the_next_fields() -> None:
    # A cached header's beginning plus one byte. The value of `a` contains the bytes that normally follow `g`.
    def head(n: int) -> bytes:
        lure = "234567890123" + "\x00\x01h\x00\x00\x00\x010\x00\x01i" + "\x00\x00\x00" + chr(n)
        return encode_fields({"a": lure.ljust(50, "x")} | {name: USUAL[name] for name in "bcdef"})

    whole = head(len(head(0)) + 1 - 34)
    reading_every_field(request(whole + encode_fields({name: USUAL[name] for name in "ghi"})))
    with pytest.raises(HeaderError):
        decode_send_request(request(whole + b"\x00"))


def test_properties_that_are_no_text_are_refused_by_both() -> None:
    usual = encode_fields(USUAL)
    bad = usual.replace(b"TAGS\x01a\x02", b"TAGS\x01\xff\x02")
    assert check(usual) != "HeaderError"
    assert check(bad) == "HeaderError"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(HeaderError, match="`b`"):
        decode_send_request(request(encode_fields({n: v for n, v in USUAL.items() if n != "b"})))


@pytest.mark.parametrize("encoding", SerializeType)
def test_all_codes_and_encodings_mean_the_same(encoding: SerializeType) -> None:
    values = {
        "producer_group": "group",
        "topic": "topic",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1700000000123,
        "flag": 0,
        "properties": "TAGS\x01a\x02",
        "reconsume_times": 0,
        "unit_mode": False,
        "max_reconsume_times": 16,
        "batch": False,
    }
    results = []
    for code, header_type in [
        (10, SendMessageRequestHeader),
        (310, SendMessageRequestHeaderV2),
        (320, SendMessageRequestHeaderV2),
    ]:
        command = RemotingCommand.request(code, header_type(**values))  # type: ignore[arg-type]
        command.serialize_type = encoding
        (got,) = FrameReader().feed(command.encode())
        results.append(decode_send_request(got))
    assert results[0] == results[1] == results[2] == decode_send_request(request(encode_fields(USUAL)))


def test_what_strangers_send_is_not_kept() -> None:
    reading_every_field(request(encode_fields(USUAL)))
    tracemalloc.start()
    try:
        for i in range(200):
            decode_send_request(request(encode_fields(USUAL | {"a": f"{i}" * 50_000})))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
    for i in range(5000):
        decode_send_request(request(encode_fields(USUAL | {"e": str(i)})))
    assert len(send_targets) <= 4096
