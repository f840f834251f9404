"""Tests of frames: round trips in both header encodings with any fragmentation, and named errors for invalid input."""

from __future__ import annotations

import gc
import time
import tracemalloc
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_timer import StepTimer

from gantrymq.errors import FrameError, HeaderError, ProtocolError
from gantrymq.protocol.codes import LanguageCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType, encode_success
from gantrymq.protocol.frame_reader import LARGE_FRAME, MAX_HEADER_LENGTH, FrameReader
from gantrymq.protocol.json_header import MAX_FIELDS

INT32 = st.integers(-(2**31), 2**31 - 1)
ENCODINGS = st.sampled_from(SerializeType)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    command = RemotingCommand.request(
        draw(st.integers(-(2**15), 2**15 - 1)),
        body=draw(st.binary(max_size=100)),
        fields=draw(st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=5)),
    )
    command.language = draw(st.sampled_from(LanguageCode))
    command.version = draw(st.integers(0, 2**15 - 1))
    command.opaque = draw(INT32)
    command.flag = draw(INT32)
    command.remark = draw(st.none() | st.text(min_size=1))
    command.serialize_type = draw(ENCODINGS)
    return command


def content(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.serialize_type,
        command.body,
        command.ext_fields,
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(commands(), max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_commands_come_back_however_the_stream_is_cut(sent: list[RemotingCommand], cuts: list[int]) -> None:
    stream = b"".join(command.encode() for command in sent)
    reader = FrameReader()

    got = [command for piece in pieces(stream, cuts) for command in reader.feed(piece)]

    assert [content(command) for command in got] == [content(command) for command in sent]
    assert reader.buffered_bytes == 0
    assert b"".join(command.encode() for command in got) == stream


@given(commands())
def test_one_byte_at_a_time(sent: RemotingCommand) -> None:
    reader = FrameReader()
    stream = sent.encode()

    got = [command for i in range(len(stream)) for command in reader.feed(stream[i : i + 1])]

    assert [content(command) for command in got] == [content(sent)]


@given(st.binary(max_size=300))
def test_any_bytes_are_commands_or_a_protocol_error(data: bytes) -> None:
    reader = FrameReader()
    try:
        for command in reader.feed(data):
            _ = command.ext_fields
    except ProtocolError:
        return
    assert reader.buffered_bytes <= len(data)


@given(commands(), st.data())
def test_a_changed_frame_is_a_command_or_a_protocol_error(command: RemotingCommand, data: st.DataObject) -> None:
    frame = bytearray(command.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        for got in FrameReader().feed(bytes(frame)):
            _ = got.ext_fields
            got.encode()
    except ProtocolError:
        pass


@given(commands(), st.data())
def test_a_header_cut_short_is_a_protocol_error(command: RemotingCommand, data: st.DataObject) -> None:
    head = command.encode_head(0)
    header = head[8 : data.draw(st.integers(8, len(head) - 1))]
    frame = pack(">iI", 4 + len(header), command.serialize_type << 24 | len(header)) + header
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(frame))


def test_commands_before_the_error_are_given_first() -> None:
    good = RemotingCommand.request(1).encode()
    commands_of_feed = FrameReader().feed(good + good + b"\xff" * 8)

    assert next(commands_of_feed).code == 1
    assert next(commands_of_feed).code == 1
    with pytest.raises(FrameError):
        next(commands_of_feed)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (pack(">iI", -1, 0), FrameError),
        (pack(">iI", 3, 0), FrameError),
        (pack(">iI", MAX_FRAME_LENGTH + 1, 0), FrameError),
        (b"GET / HTTP/1.1\r\n", FrameError),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", FrameError),  # A TLS ClientHello.
        (pack(">iI", 4, 1), FrameError),  # The header is longer than the frame.
        (pack(">iI", 4, 2 << 24), FrameError),  # An unknown encoding.
        (pack(">iI", 4, 0), HeaderError),
        (pack(">iI", 4, 1 << 24), HeaderError),
        (pack(">iI", 6, 2) + b"[]", HeaderError),
        (pack(">iI", 6, 2) + b"{}", HeaderError),
        (pack(">iI", 8 + 4, 8) + b'{"code":', HeaderError),
    ],
)
def test_impossible_frames(frame: bytes, error: type[ProtocolError]) -> None:
    with pytest.raises(error):
        list(FrameReader().feed(frame))


def binary_header(remark_length: int, rest: bytes) -> bytes:
    return pack(">hBhiii", 1, 0, 0, 0, 0, remark_length) + rest


@pytest.mark.parametrize(
    "header",
    [
        binary_header(-1, b"\x00" * 8),
        binary_header(5, b"\x00" * 8),
        binary_header(2**31 - 1, b"\x00" * 8),
        binary_header(1, b"\xff" + b"\x00" * 4),  # A remark that is not UTF-8.
        binary_header(0, pack(">i", -1)),
        binary_header(0, pack(">i", 1)),
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"language":"\xff"}',
        b'{"code":"x"}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"extFields":' + b"[" * 100_000,
        b'{"code":1,"x":' + b'{"a":' * 100_000,
        b'{"flag":0}',
    ],
)
def test_unreadable_headers(header: bytes) -> None:
    encoding = 0 if header[:1] == b"{" else 1
    with pytest.raises(HeaderError):
        list(FrameReader().feed(pack(">iI", 4 + len(header), encoding << 24 | len(header)) + header))


@pytest.mark.parametrize(
    ("ext", "encoding"),
    [
        (b"\x00", 1),
        (b"\x00\x01a", 1),
        (b"\x00\x05a\x00\x00\x00\x00", 1),
        (b"\xff\xff\x00\x00\x00\x00", 1),
        (b"\x00\x01a\x7f\xff\xff\xffb", 1),
        (b"\x00\x01a\xff\xff\xff\xffb", 1),
        (b"\x00\x01\xff\x00\x00\x00\x01b", 1),
        (b"\x00\x01a\x00\x00\x00\x01\xff", 1),
        (b'"text"', 0),
        (b"[1]", 0),
        (b'{"a":"\xff"}', 0),
        (b'{"a":["\xff"]}', 0),
    ],
)
def test_unreadable_ext_fields(ext: bytes, encoding: int) -> None:
    in_json = b'{"code":1,"extFields":' + ext + b"}"
    header = pack(">hBhiiii", 1, 0, 0, 0, 0, 0, len(ext)) + ext if encoding else in_json
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), encoding << 24 | len(header)) + header)
    with pytest.raises(HeaderError):
        _ = command.ext_fields


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize(
    ("code", "remark", "fields"),
    [
        (1, "\ud800", {}),
        (1, None, {"a": "\ud800"}),
        (1, None, {"\ud800": "a"}),
    ],
)
def test_what_no_header_can_carry(encoding: SerializeType, code: int, remark: str, fields: dict[str, str]) -> None:
    command = RemotingCommand.request(code, fields=fields)
    command.remark = remark
    command.serialize_type = encoding
    with pytest.raises(HeaderError):
        command.encode()


@pytest.mark.parametrize(
    ("code", "opaque", "fields"), [(32768, 0, {}), (200050, 0, {}), (1, 2**31, {}), (1, 0, {"n" * 32768: "v"})]
)
def test_what_the_binary_header_cannot_carry(code: int, opaque: int, fields: dict[str, str]) -> None:
    command = RemotingCommand.request(code, fields=fields)
    command.opaque = opaque
    command.serialize_type = SerializeType.ROCKETMQ
    with pytest.raises(HeaderError):
        command.encode()


def test_a_header_too_long_for_its_frame() -> None:
    command = RemotingCommand.request(1, fields={"a": "x" * 0xFFFFFF})
    with pytest.raises(FrameError):
        command.encode()


def test_json_of_other_clients() -> None:
    header = (
        b'{"code":"310","language":99,"opaque":3.0,"extFields":{"n":5,"b":true,"z":null,"o":{"x":[1]},"s":"t"},"new":1}'
    )
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), len(header)) + header)

    assert (command.code, command.language, command.opaque, command.version) == (310, 99, 3, 0)
    assert command.ext_fields == {"n": "5", "b": "true", "o": '{"x":[1]}', "s": "t"}


@pytest.mark.parametrize(("language", "expected"), [(b'"RUST"', 12), (b'"KLINGON"', 7), (b"null", 0), (b"9", 9)])
def test_languages(language: bytes, expected: int) -> None:
    header = b'{"code":1,"language":' + language + b',"extFields":null}'
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), len(header)) + header)

    assert (command.language, command.ext_fields) == (expected, {})


def test_memory_is_what_was_sent_and_not_what_was_announced() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        assert list(reader.feed(pack(">iI", MAX_FRAME_LENGTH, 2000) + b"x" * 1000)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.buffered_bytes == 1008
    assert peak < 100_000


def test_a_large_frame_in_many_pieces_costs_no_more_than_its_size() -> None:
    frame = RemotingCommand.request(1, body=bytes(8 << 20)).encode()
    reader = FrameReader()
    start = time.thread_time()
    got = [command for at in range(0, len(frame), 512) for command in reader.feed(frame[at : at + 512])]
    assert len(got) == 1
    assert time.thread_time() - start < 2  # Takes 0.03 s; 10 s or more if each piece copied the earlier ones.


def test_many_small_frames_in_one_piece_cost_no_more_than_their_number() -> None:
    stream = RemotingCommand.request(1, body=bytes(50)).encode() * 40_000
    start = time.thread_time()
    assert sum(1 for _ in FrameReader().feed(stream)) == 40_000
    assert time.thread_time() - start < 2  # Takes 0.06 s; 10 s or more if each frame copied the rest.


LARGE_BODY = bytes(range(256)) * 2 * (LARGE_FRAME // 256)


@given(st.lists(st.integers(0, 2 * len(LARGE_BODY)), max_size=30), ENCODINGS)
def test_large_bodies_however_they_are_cut(cuts: list[int], encoding: SerializeType) -> None:
    large = RemotingCommand.request(2, body=LARGE_BODY, fields={"a": "b"})
    large.serialize_type = encoding
    sent = [RemotingCommand.request(1, body=b"first"), large, RemotingCommand.request(3, body=b"last"), large]
    frames = [command.encode() for command in sent]
    reader = FrameReader()
    fed, got = 0, []

    for piece in pieces(b"".join(frames), cuts):
        got += reader.feed(piece)
        fed += len(piece)
        unfinished = fed - sum(map(len, frames[: len(got)]))
        assert unfinished - 200 < reader.buffered_bytes <= unfinished  # The header may be parsed already.

    assert [content(command) for command in got] == [content(command) for command in sent]
    assert all(type(command.body) is bytes for command in got)


def test_a_large_body_in_tiny_pieces_costs_what_it_is_long() -> None:
    frame = RemotingCommand.request(1, body=LARGE_BODY).encode()
    reader = FrameReader()
    tracemalloc.start()
    try:
        got = [command for i in range(0, len(frame), 8) for command in reader.feed(frame[i : i + 8])]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [command.body for command in got] == [LARGE_BODY]
    assert peak < 3 * len(frame)


def test_a_large_frame_with_an_impossible_header_is_refused_before_its_body_has_come() -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(pack(">iI", LARGE_FRAME, LARGE_FRAME)))
    with pytest.raises(HeaderError):
        list(FrameReader().feed(pack(">iI", LARGE_FRAME, 2) + b"[]"))


# -- limits for a single frame --------------------------------------------------------------------------------------


def test_a_header_that_is_no_header_is_refused_before_it_has_come() -> None:
    length = MAX_HEADER_LENGTH + 1
    with pytest.raises(FrameError, match=f"at most {MAX_HEADER_LENGTH}"):
        list(FrameReader().feed(pack(">iI", 4 + length, length) + bytes(1000)))
    assert list(FrameReader().feed(pack(">iI", 3 + length, length - 1) + bytes(1000))) == []


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize("value", ["", "x" * 10])
def test_a_header_of_very_many_fields_is_not_read(value: str, encoding: SerializeType) -> None:
    def received(count: int) -> RemotingCommand:
        sent = RemotingCommand.request(1, fields={f"field {n}": value for n in range(count)})
        sent.serialize_type = encoding
        return RemotingCommand(1, 9, 0, 0, 0, None, raw_ext_of(sent), b"", encoding)

    assert len(received(MAX_FIELDS).ext_fields) == (MAX_FIELDS if value or encoding == SerializeType.JSON else 0)
    huge = received(200_000)
    # A collection visits all objects of this test process, which would distort the measurement.
    timer = StepTimer()
    gc.disable()
    try:
        with timer.step(), pytest.raises(HeaderError, match=f"more than {MAX_FIELDS} fields"):
            _ = huge.ext_fields
    finally:
        gc.enable()
    assert timer.longest < 0.05  # Parsing all fields takes 0.3 s or more.


def raw_ext_of(command: RemotingCommand) -> bytes:
    (got,) = FrameReader().feed(command.encode())
    return got.raw_ext


def test_long_values_are_no_many_fields() -> None:
    for encoding in SerializeType:
        sent = RemotingCommand.request(1, fields={"a": "\u20ac" * 1_000_000, "b": "'" * 100_000})
        sent.serialize_type = encoding
        (got,) = FrameReader().feed(sent.encode())
        assert got.ext_fields == sent.ext_fields


@pytest.mark.parametrize("body", [0, 1000, LARGE_FRAME + 1000])
def test_a_reader_tells_of_the_frame_under_way(body: int) -> None:
    frame = RemotingCommand.request(1, body=bytes(body)).encode()
    reader = FrameReader()
    numbers = []
    for _ in range(2):
        assert (reader.frame_length, reader.buffered_bytes) == (0, 0)
        assert list(reader.feed(frame[:3])) == []
        assert (reader.frame_length, reader.buffered_bytes) == (8, 3)
        assert list(reader.feed(frame[3:20])) == []
        assert (reader.frame_length, reader.buffered_bytes) == (len(frame), 20)
        numbers.append(reader.frame_number)
        assert len(list(reader.feed(frame[20:]))) == 1
    assert numbers[1] > numbers[0]
    assert len(list(reader.feed(frame + frame[:20]))) == 1
    assert (reader.frame_length, reader.buffered_bytes) == (len(frame), 20)
    reader.clear()
    assert (reader.frame_length, reader.buffered_bytes) == (0, 0)


def test_the_begin_of_a_large_frame_does_not_keep_the_read_that_it_came_with() -> None:
    small = RemotingCommand.request(1, body=bytes(250_000)).encode()
    large = RemotingCommand.request(2, body=bytes(1 << 20)).encode()[:10_000]
    readers = [FrameReader() for _ in range(20)]
    tracemalloc.start()
    try:
        for reader in readers:
            list(reader.feed(b"".join((small, large))))
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current < 20 * 20_000


@given(commands())
def test_a_success_is_encoded_as_any_response(request: RemotingCommand) -> None:
    response = RemotingCommand.response()
    response.opaque, response.serialize_type = request.opaque, request.serialize_type
    assert encode_success(request) == response.encode()
