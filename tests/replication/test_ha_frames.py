"""The frames between master and slave, byte by byte and split into random pieces."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import FrameError
from gantrymq.replication.frames import (
    MAX_BODY,
    VERSION,
    Frame,
    FrameReader,
    Greeting,
    Report,
    ReportReader,
    encode_greeting,
    encode_header,
    encode_opening,
    encode_report,
)

MASTER = Greeting(0, 5000, 1 << 20, VERSION)
frames = st.lists(st.builds(Frame, st.integers(0, (1 << 63) - 1), st.binary(max_size=100)), max_size=10)


def read_all(reader: FrameReader, data: bytes, cuts: list[int]) -> Iterator[Frame | Greeting]:
    begin = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        reader.feed(data[begin:end])
        begin = end
        while (frame := reader.next()) is not None:
            yield frame


def encode(frames: list[Frame], *, checked: bool) -> bytes:
    return b"".join(encode_header(frame.offset, frame.body, checked=checked) + frame.body for frame in frames)


def test_as_java_writes_them() -> None:
    assert encode_header(7, b"abc", checked=False) == pack(">qi", 7, 3)
    assert encode_report(9, 1, checked=False) == pack(">q", 9)
    assert encode_opening(9) == pack(">qq", -1, 9)


@given(frames, st.lists(st.integers(0, 2000), max_size=8))
def test_plain_frames_in_any_pieces(sent: list[Frame], cuts: list[int]) -> None:
    assert list(read_all(FrameReader(), encode(sent, checked=False), cuts)) == sent


@given(frames, st.lists(st.integers(0, 2000), max_size=8))
def test_checked_frames_in_any_pieces(sent: list[Frame], cuts: list[int]) -> None:
    reader = FrameReader()
    data = encode_greeting(MASTER) + encode(sent, checked=True)
    assert list(read_all(reader, data, cuts)) == [MASTER, *sent]
    assert reader.checked


@given(frames, st.lists(st.integers(0, 2000), max_size=8))
def test_frames_stay_as_they_are_while_more_comes(sent: list[Frame], cuts: list[int]) -> None:
    # Pieces have different memory types, and a body is a view of its piece.
    kept = list(read_all(FrameReader(), encode(sent, checked=False), cuts))
    assert [Frame(frame.offset, bytes(frame.body)) for frame in kept if isinstance(frame, Frame)] == sent


@given(st.binary(min_size=1, max_size=60), st.integers(0, 10_000), st.integers(1, 255))
def test_one_wrong_byte_is_noticed(body: bytes, place: int, change: int) -> None:
    greeting = encode_greeting(MASTER)
    data = bytearray(encode([Frame(40, body), Frame(40 + len(body), b"")], checked=True))
    data[place % len(data)] ^= change
    reader = FrameReader()
    reader.feed(greeting + data)
    assert reader.next() == MASTER
    found = []
    try:
        while (frame := reader.next()) is not None:
            found.append(frame)
    except FrameError:
        pass
    # If the change increases the size of the frame, the reader waits for more data.
    assert found in ([], [Frame(40, body)])


@pytest.mark.parametrize("size", [-1, MAX_BODY + 5, (1 << 31) - 1])
def test_impossible_sizes(size: int) -> None:
    reader = FrameReader()
    reader.feed(pack(">qi", 0, size))
    with pytest.raises(FrameError, match="bytes at 0"):
        reader.next()


def test_greeting_of_a_later_version_may_say_more() -> None:
    body = pack(">qqiiq", 0, 5000, 1 << 20, 2, 77)
    reader = FrameReader()
    reader.feed(encode_header(-1, body, checked=True) + body)
    assert reader.next() == Greeting(0, 5000, 1 << 20, 2)


def test_short_greeting() -> None:
    reader = FrameReader()
    reader.feed(encode_header(-1, b"short", checked=True) + b"short")
    with pytest.raises(FrameError, match="greeting of 5 bytes"):
        reader.next()


def test_java_slaves_reports() -> None:
    reader = ReportReader()
    assert reader.feed(pack(">q", 5)[:3]) is None
    assert reader.feed(pack(">q", 5)[3:]) == Report(5, -1)
    assert reader.feed(pack(">qqq", 6, 7, 8) + b"\0\0") == Report(8, -1)
    assert reader.feed(pack(">q", 9)[2:]) == Report(9, -1)
    assert not reader.checked


@given(st.lists(st.integers(0, 80), max_size=5))
def test_our_slaves_reports(cuts: list[int]) -> None:
    reader = ReportReader()
    data = encode_opening(1) + encode_report(10, 2, checked=True) + encode_report(20, 2, checked=True)
    begin, found = 0, []
    for end in [*sorted(cuts), len(data)]:
        found.append(reader.feed(data[begin:end]))
        begin = max(begin, end)
    assert reader.checked
    reports = [report for report in found if report is not None]
    assert reports[-1] == Report(20, 2)
    assert set(reports) <= {Report(10, 2), Report(20, 2)}


@pytest.mark.parametrize(
    "data",
    [
        pack(">q", -2),
        pack(">qq", 5, -1),
        encode_opening(1) + b"x" * 16,
        encode_opening(1) + pack(">qiI", -5, 1, crc32(pack(">qi", -5, 1))),
    ],
    ids=["negative", "greeting too late", "no crc", "negative with crc"],
)
def test_rubbish_of_slaves(data: bytes) -> None:
    with pytest.raises(FrameError):
        ReportReader().feed(data)


@pytest.mark.parametrize("bit", range(64))
def test_a_slave_of_ours_is_never_taken_for_one_of_java_s(bit: int) -> None:
    """No flipped bit in the first word makes a GantryMQ slave look like a Java slave.

    Without checksums, later damage would not be detected.
    """
    opening = bytearray(encode_opening(4096))
    opening[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        ReportReader().feed(bytes(opening))
