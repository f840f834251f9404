"""Frames that cost a peer little and the proxy much: the processor's time for them is measured, not the clock's."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from transports import Swallowing

from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.connection import Fields, Http2Connection, Limits
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.stream import Http2Stream
from gantrymq.proxy.http2.untaken import UntakenBytes

STREAMS = 1024
CONNECTIONS = 10
#: For all of them. What they send took 1.3 to 37 s before it was bounded, and takes 0.1 to 0.3 s.
MOST_S = 1.0
#: The same for settings one by one, which took 9.6 s and take 0.4 to 0.7 s.
MOST_FOR_SETTINGS_S = 3.0
_READ = 256 * 1024


class Answered:
    """A receiver of a request that is answered from elsewhere."""

    def data_received(self, data: bytes, ended: bool) -> None:
        pass

    def server_stops(self) -> None:
        pass

    def stream_lost(self) -> None:
        pass


def flooded(sent: bytes) -> bool:
    """What a connection whose streams all have an answer, and shut windows, does with it; whether it was closed."""
    streams: list[Http2Stream] = []

    def accept(stream: Http2Stream, fields: Fields) -> Answered:
        streams.append(stream)
        return Answered()

    connection = Http2Connection(accept, Limits(STREAMS), UntakenBytes(), lambda opened: None, lambda closed: None)
    transport = Swallowing()
    connection.connection_made(transport)
    connection.data_received(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0}))
    block = b"\x83\x86" + literal(b":path", b"/")
    for n in range(STREAMS):
        head = frames.frame_head(frames.HEADERS, frames.END_HEADERS, 2 * n + 1, len(block))
        connection.data_received(head + block)
    for stream in streams:
        stream.send_data(b"x" * 1000)
    for at in range(0, len(sent), _READ):
        connection.data_received(sent[at : at + _READ])
    assert len(streams) == STREAMS
    return transport.closed


def window_settings(count: int) -> Iterator[tuple[int, int]]:
    return ((frames.SETTING_INITIAL_WINDOW_SIZE, n % 2) for n in range(count))


MANY_SETTINGS = b"".join(
    frames.settings({key: value})[frames.HEADER_LENGTH :] for key, value in window_settings(10_000)
)
NEXT = 2 * STREAMS + 1


@pytest.mark.parametrize(
    ("sent", "is_closed", "most_s"),
    [
        (frames.window_update(0, 256) * 20_000, False, MOST_S),
        ((frames.frame_head(frames.SETTINGS, 0, 0, len(MANY_SETTINGS)) + MANY_SETTINGS) * 20, False, MOST_S),
        (b"".join(frames.settings({key: value}) for key, value in window_settings(4900)), True, MOST_FOR_SETTINGS_S),
        (
            frames.frame_head(frames.HEADERS, 0, NEXT, 0) + frames.frame_head(frames.CONTINUATION, 0, NEXT, 0) * 4900,
            False,
            MOST_S,
        ),
    ],
    ids=["windows", "settings of many windows", "many settings", "continuations"],
)
async def test_frames_that_are_cheap_to_send(sent: bytes, is_closed: bool, most_s: float) -> None:
    # Of this thread alone: servers of other tests may still be ending in this process. And without the collector, which
    # takes a second after thousands of tests.
    gc.disable()
    try:
        began = time.thread_time()
        closed = [flooded(sent) for _ in range(CONNECTIONS)]
        took_s = time.thread_time() - began
    finally:
        gc.enable()
    assert took_s < most_s
    assert closed == [is_closed] * CONNECTIONS


async def test_a_window_that_settings_make_impossible() -> None:
    """RFC 9113, 6.9.2: a stream's own was opened before."""
    opened = frames.window_update(1, frames.MAX_WINDOW - 10)
    assert not flooded(opened)
    assert flooded(opened + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 1000 + 11}))
