"""Frames that are cheap for a peer and expensive for the proxy. The tests measure the proxy's CPU time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from step_timer import StepTimer
from transports import Swallowing

from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.connection import Http2Connection
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.http2.request_fields import Fields
from gantrymq.proxy.http2.stream import Http2Stream

STREAMS = 1024
BLOCK = b"\x83\x86" + literal(b":path", b"/")
CONNECTIONS = 10
#: Limit of the CPU time in seconds; 0.1 to 0.3 s are usual.
MOST_S = 1.0
#: Limit for many single settings in seconds; 0.4 to 0.7 s are usual.
MOST_FOR_SETTINGS_S = 3.0
_READ = 256 * 1024


class Answered:
    """The receiver of a request whose response comes from elsewhere."""

    def data_received(self, data: bytes, ended: bool) -> None:
        pass

    def server_stops(self) -> None:
        pass

    def stream_lost(self) -> None:
        pass


async def flooded(sent: bytes, block: bytes = BLOCK, *, are_reset: bool = False) -> bool:
    """Sends the bytes to a connection whose streams all have a response and closed windows.

    Returns true if the connection closes.
    """
    streams: list[Http2Stream] = []

    def accept(stream: Http2Stream, fields: Fields) -> Answered:
        streams.append(stream)
        return Answered()

    connection = Http2Connection(accept, Limits(streams=STREAMS), lambda opened: None, lambda closed: None)
    transport = Swallowing()
    connection.connection_made(transport)
    connection.data_received(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0}))
    for n in range(STREAMS):
        head = frames.frame_head(frames.HEADERS, frames.END_HEADERS, 2 * n + 1, len(block))
        connection.data_received(head + block)
    for stream in streams:
        if are_reset:
            stream.finish(b"\x88")
        else:
            stream.send_data(b"x" * 1000)
    for at in range(0, len(sent), _READ):
        connection.data_received(sent[at : at + _READ])
        while not transport.is_read and not transport.closed:
            # The rest of the input waits for its next time slice.
            await asyncio.sleep(0)
    assert len(streams) == STREAMS
    return transport.closed


def window_settings(count: int) -> Iterator[tuple[int, int]]:
    return ((frames.SETTING_INITIAL_WINDOW_SIZE, n % 2) for n in range(count))


MANY_SETTINGS = b"".join(frames.settings({key: value})[frames.HEADER_LENGTH :] for key, value in window_settings(2_700))
NEXT = 2 * STREAMS + 1


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame_head(frames.DATA, flags, stream_id, len(payload)) + payload


def headers(stream_id: int, block: bytes, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame_head(frames.HEADERS, flags, stream_id, len(block)) + block


#: "aaaaaaaa" in Huffman code, and a header value of 9,000 bytes that no cache contains.
EIGHT = b"\x18\xc6\x31\x8c\x63"
CODED = BLOCK + b"\x00\x01a\xff\xa9\x45" + EIGHT * 1800


@pytest.mark.parametrize(
    ("sent", "is_closed", "most_s"),
    [
        (frames.window_update(0, 256) * 10_000, False, MOST_S),
        (frames.window_update(0, 256) * 40_000, True, MOST_S),
        ((frames.frame_head(frames.SETTINGS, 0, 0, len(MANY_SETTINGS)) + MANY_SETTINGS) * 20, False, MOST_S),
        (b"".join(frames.settings({key: value}) for key, value in window_settings(4900)), True, MOST_FOR_SETTINGS_S),
        (
            frames.frame_head(frames.HEADERS, 0, NEXT, 0) + frames.frame_head(frames.CONTINUATION, 0, NEXT, 0) * 4900,
            False,
            MOST_S,
        ),
        (data(1, b"x") * 40_000, True, MOST_S),
        (data(1, b"\0", frames.PADDED) * 40_000, True, MOST_S),
        (frames.ping(b"12345678", ack=True) * 40_000, True, MOST_S),
        (frames.frame_head(0x42, 0, 0, 0) * 100_000, True, MOST_S),
        (b"".join(headers(NEXT + 2 * n, BLOCK) for n in range(5000)), True, MOST_S),
        (headers(NEXT, BLOCK + b"\x82" * 16_000), True, MOST_S),
        (b"".join(headers(NEXT + 2 * n, CODED) for n in range(60)), True, MOST_S),
    ],
    ids=[
        "windows",
        "more windows",
        "settings of many windows",
        "many settings",
        "continuations",
        "data of one byte",
        "empty data",
        "answers to no ping",
        "unknown frames",
        "refused streams",
        "many indexed fields",
        "long coded texts",
    ],
)
async def test_frames_that_are_cheap_to_send(sent: bytes, is_closed: bool, most_s: float) -> None:
    # CPU time of this thread only, because servers of other tests may still be shutting down. Without garbage
    # collection, which takes a second after thousands of tests.
    gc.disable()
    timer = StepTimer()
    try:
        with timer.step():
            closed = [await flooded(sent) for _ in range(CONNECTIONS)]
    finally:
        gc.enable()
    assert timer.longest < most_s
    assert closed == [is_closed] * CONNECTIONS


ENDED = 2 * STREAMS - 1


@pytest.mark.parametrize(
    "sent",
    [
        frames.window_update(ENDED, 1000) * 40_000,
        data(ENDED, b"x" * 100) * 40_000,
        data(ENDED, b"\x63" + bytes(99), frames.PADDED) * 40_000,
        headers(ENDED, b"\x82") * 10_000,
        frames.rst_stream(ENDED, 8) * 40_000,
        (frames.frame_head(frames.PRIORITY, 0, ENDED, 5) + bytes(5)) * 40_000,
    ],
    ids=["windows", "data", "padding", "trailers", "resets", "priorities"],
)
async def test_frames_of_streams_that_have_ended(sent: bytes) -> None:
    timer = StepTimer()
    with timer.step():
        assert await flooded(sent, are_reset=True)
    assert timer.longest < MOST_S


async def test_an_end_while_the_transport_closes() -> None:
    """uvloop's transport rejects writes then."""

    class Refusing(Swallowing):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            assert not self.is_closing()
            super().write(data)

    connection = Http2Connection(lambda stream, fields: None, Limits(), lambda opened: None, lambda closed: None)
    transport = Refusing()
    connection.connection_made(transport)
    transport.close()
    connection.end()
    await asyncio.sleep(0)
    assert not transport.written


async def test_calls_that_are_cancelled_at_once_are_no_flood() -> None:
    assert not await flooded(b"".join(frames.rst_stream(2 * n + 1, 8) for n in range(STREAMS)))


async def test_a_window_that_settings_make_impossible() -> None:
    """RFC 9113, 6.9.2: the stream's own window was enlarged before."""
    opened = frames.window_update(1, frames.MAX_WINDOW - 10)
    assert not await flooded(opened)
    assert await flooded(opened + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 1000 + 11}))
