"""Decides when a connection is read and when its requests are handled.

An open connection is read unless one of the following conditions is true. Only `read_or_stop` checks them. Several can
be true at the same time:

    `_writable` is a future   the write buffer is full (server only)           ends with `resume_writing`
    `_rest` is an iterator    requests of the last read are not handled yet    ends with `go_on`, after the write
                                                                               buffer has space and the connection
                                                                               gets a time slice (`time_slices.py`)
    `_slices.is_full`         deferred input exceeds its limit, and the        ends when half of it is handled
                              connection is not cheap (server only)
    `is_stopped`              its incomplete frame exceeds the quota           ends with `go_on_reading`
                              (server only)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from gantrymq.errors import RequestTimeout
from gantrymq.logs import peer_log
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.time_slices import CHEAP_S, CHEAP_SHARE, KNOWN_S, MOST_S, SHORT_SLICE_S, SLICE_S, TimeSlices
from gantrymq.remoting.unread_responses import UnreadResponses
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Size at which a client's write buffer is full, in bytes. Writers then wait until the peer reads three quarters of it.
WRITE_HIGH_WATER = 8 * 1024 * 1024
#: Size at which a server's write buffer is full, in bytes. The server then stops reading from this peer. The size is
#: small because hundreds of peers may stop reading. A larger buffer would not help these peers.
ANSWERS_HIGH_WATER = 1024 * 1024
#: With this many unsent bytes, a peer gets no more one-way requests, because no caller waits for the buffer.
ONEWAY_LIMIT = 2 * WRITE_HIGH_WATER
#: Maximum size of unsent responses that pausing the reads does not stop, such as late responses of tasks, in bytes.
UNTAKEN_LIMIT = 8 * WRITE_HIGH_WATER


class Rest:
    """The commands of a read that are left after a time slice: the next one, and an iterator for the others."""

    def __init__(self, following: RemotingCommand, others: Iterator[RemotingCommand]) -> None:
        self._following: RemotingCommand | None = following
        # Unwraps a nested Rest, so that a command never passes through more than one.
        self._others: Iterator[RemotingCommand] = others._others if isinstance(others, Rest) else others

    def __iter__(self) -> Rest:
        return self

    def __next__(self) -> RemotingCommand:
        following, self._following = self._following, None
        return next(self._others) if following is None else following


class FlowControl(asyncio.Protocol):
    """The base class of `Connection` that controls reading and writing.

    If a peer does not read its responses, the server stops reading from it, which limits the buffered responses.
    A client always reads: if both sides stopped reading, two peers with full buffers would block each other forever.
    """

    def __init__(self, slices: TimeSlices, *, is_server: bool, unread: UnreadResponses | None = None) -> None:
        self.address = "?"
        #: Time of the last handled input, in seconds of the monotonic clock, which is also the loop's clock.
        self._opened = self.last_read = 0.0
        self._is_server = is_server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._slices = slices
        self._unread = unread
        #: Recent CPU time of the connection's time slices in excess of its share, in seconds, as of `last_read`.
        self._recent_s = 0.0
        #: CPU time of the connection's longest time slice, in seconds. A slice that did not handle all requests counts
        #: as at least SLICE_S. Each further slice multiplies this value by SLICE_DECAY.
        self._longest_slice_s = 0.0
        #: A future while the write buffer is full. Done when the buffer has space or the connection is lost.
        self._writable: asyncio.Future[None] | None = None
        #: Commands of a read that were not handled because the write buffer was full or the time slice had ended.
        self._rest: Iterator[RemotingCommand] | None = None
        #: True if the connection is deferred and `go_on` will be called.
        self._is_deferred = False
        #: Size of the last read, which is buffered until all its requests are handled, in bytes.
        self.read_bytes = 0
        #: True if this side has stopped reading (see `stop_reading`). Silence then does not mean that the peer is idle.
        self.is_stopped = False

    def _receive(self, commands: Iterator[RemotingCommand]) -> None:
        """Handles the commands of a read. Leaves the rest in `_rest` if they take too long."""
        raise NotImplementedError

    # -- slices --------------------------------------------------------------------------------------------------

    def charge(self, seconds: float) -> None:
        """Adds CPU time (`thread_time`, in seconds) that the connection's requests used outside its time slices."""
        # Relative to `last_read`, as in `is_busy`.
        forgiven_s = (monotonic() - self.last_read) * CHEAP_SHARE
        self._recent_s = min(max(self._recent_s, forgiven_s) + seconds, forgiven_s + MOST_S)
        self._longest_slice_s = max(self._longest_slice_s, SLICE_S)

    def is_busy(self) -> bool:
        """Returns true if the connection's time slices take more than CHEAP_SHARE of the time."""
        return self._recent_s - (monotonic() - self.last_read) * CHEAP_SHARE > CHEAP_S

    def forgiven_at(self) -> float:
        """Returns the monotonic time at which the connection's used CPU time expires, if it uses no more until then."""
        return self.last_read + self._recent_s / CHEAP_SHARE

    def _is_known_as_cheap(self) -> bool:
        is_known = self._opened < self.last_read > monotonic() - KNOWN_S
        return is_known and (self._longest_slice_s <= SHORT_SLICE_S or not self.is_busy())

    @property
    def is_behind(self) -> bool:
        """True if received requests wait for a time slice. Requests that wait for write buffer space don't count."""
        return self._is_deferred

    def _wait_for_slice(self) -> None:
        if not self._is_deferred and (self._writable is None or not self._is_server):
            self._is_deferred = True
            self._slices.defer(self)

    def go_on(self) -> None:
        """Handles the deferred requests in the time slice that has started."""
        self._is_deferred = False
        if self._rest is None or (self._writable is not None and self._is_server) or self._closing:
            return
        commands, self._rest = self._rest, None
        self._receive(commands)
        if self._rest is None:
            self.read_or_stop()

    # -- reading ------------------------------------------------------------------------------------------------

    def read_or_stop(self) -> None:
        """Resumes or pauses reading, depending on the conditions above."""
        if self._closing or self._transport is None or self._transport.is_closing():
            return
        is_held_up = self._is_server and (
            self._writable is not None or (self._slices.is_full and not self._is_known_as_cheap())
        )
        if self._rest is None and not self.is_stopped and not is_held_up:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def stop_reading(self) -> None:
        """Stops reading in the middle of a frame, until `go_on_reading`."""
        self.is_stopped = True
        self.read_or_stop()

    def go_on_reading(self) -> None:
        self.is_stopped = False
        # The pause counts as input, because the peer was not silent: this side did not read.
        self.last_read = monotonic()
        self.read_or_stop()

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if the write buffer is full because the peer doesn't read."""
        return self._writable is not None

    @property
    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def answers_pile_up(self) -> bool:
        """True if unread responses of all peers exceed half of their limit. Responses should then be small."""
        return self._unread is not None and self._unread.is_much

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        if self._unread is not None:
            self._unread.full(self)
        self.read_or_stop()

    def resume_writing(self) -> None:
        self._wake_writers()
        if self._rest is not None:
            # Deferred, because the transport is in the middle of a write.
            self._wait_for_slice()
        else:
            self.read_or_stop()

    def _wake_writers(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            if self._unread is not None:
                self._unread.taken(self)

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls `callback` as soon as the write buffer has space or the connection is lost, possibly at once."""
        if self._writable is None:
            callback()
        else:
            self._writable.add_done_callback(lambda _: callback())

    def limit_writes(self, high_water: int) -> None:
        """Sets the size at which the write buffer is full, in bytes, instead of WRITE_HIGH_WATER."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high_water)

    async def wait_until_writable(self, timeout_ms: int) -> int:
        """Waits until the write buffer has space. Returns the rest of `timeout_ms`. Raises RequestTimeout."""
        deadline = self._loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                while self._writable is not None:
                    await asyncio.shield(self._writable)
        except TimeoutError:
            message = f"{self.address} did not take what was sent before in {timeout_ms} ms"
            raise RequestTimeout(message, self.address) from None
        return max(1, round((deadline - self._loop.time()) * 1000))

    def _refuse_flood(self) -> bool:
        """Closes the connection if the peer sends requests but does not read the responses, which use memory.

        Returns true if the connection was closed. A pause in reading would not suffice: a client never pauses, and late
        responses are written even if the connection is not read.
        """
        if self._writable is None or self._transport is None:
            return False
        if self._unread is not None:
            self._unread.full(self)
        if self.unwritten_bytes <= (UNTAKEN_LIMIT if self._is_server else ONEWAY_LIMIT):
            return False
        log.warning("closing the connection with %s, which asks and takes no answers", self.address)
        self.abort()
        return True

    def abort(self) -> None:
        """Closes the connection at once. Unsent data is lost."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
