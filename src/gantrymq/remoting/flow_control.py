"""When a connection is read, and when its requests have their turn.

While a connection is open it is read, unless something speaks against it; `read_or_stop` alone decides. Each of these
can be true beside the others:

    `_writable` is a future   the write buffer is full (server only)           ends with `resume_writing`
    `_rest` is an iterator    requests of the last read are still to be        ends with `go_on`, which waits for room
                              handled                                          and for a turn of its own (`turns.py`)
    `_turns.is_full`          reads that wait hold too much, and it isn't    ends when half of that was handled
                              known to ask for little (server only)
    `is_stopped`              its unfinished frame has no room (server only)   ends with `go_on_reading`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from gantrymq.errors import RequestTimeout
from gantrymq.logs import peer_log
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.turns import CHEAP_S, CHEAP_SHARE, KNOWN_S, MOST_S, SHORT_TURN_S, TURN_S, Turns
from gantrymq.remoting.untaken_answers import UntakenAnswers
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Unwritten bytes at which a client's writers wait until the peer has taken three quarters of them.
WRITE_HIGH_WATER = 8 * 1024 * 1024
#: The same of a server, which stops reading then. Little more than the kernel's own buffer: hundreds of peers may read
#: nothing, and what they gain by a larger one is nothing either.
ANSWERS_HIGH_WATER = 1024 * 1024
#: To a peer that leaves so much in the write buffer nothing more is sent without an answer: nobody would wait for room.
ONEWAY_LIMIT = 2 * WRITE_HIGH_WATER
#: A server's answers that don't come from reading (tasks, what waited) go on until a peer has left so much there.
UNTAKEN_LIMIT = 8 * WRITE_HIGH_WATER


class Rest:
    """What a turn left of a read: the command that follows, and those behind it."""

    def __init__(self, following: RemotingCommand, others: Iterator[RemotingCommand]) -> None:
        self._following: RemotingCommand | None = following
        # However many turns a read takes, a command comes through one of these.
        self._others: Iterator[RemotingCommand] = others._others if isinstance(others, Rest) else others

    def __iter__(self) -> Rest:
        return self

    def __next__(self) -> RemotingCommand:
        following, self._following = self._following, None
        return next(self._others) if following is None else following


class FlowControl(asyncio.Protocol):
    """What `Connection` is made of beside requests and answers.

    A server's connection is not read while its peer doesn't take the answers, which bounds what waits for it. A client
    reads on: if both stopped, two that have much to say to each other would wait for ever.
    """

    def __init__(self, turns: Turns, *, is_server: bool, untaken: UntakenAnswers | None = None) -> None:
        self.address = "?"
        #: When its bytes were last dealt with, s of the monotonic clock, which is the loop's too.
        self._opened = self.last_read = 0.0
        self._is_server = is_server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._turns = turns
        self._untaken = untaken
        #: What its turns took of the processor of late, beyond its share of the time, s; as of `last_read`.
        self._recent_s = 0.0
        #: Its longest turn, by processor time in s. A turn that left requests counts as TURN_S at least. Each further
        #: turn multiplies it by TURN_DECAY.
        self._longest_turn_s = 0.0
        #: While the write buffer is full: done when there is room, or no connection any more.
        self._writable: asyncio.Future[None] | None = None
        #: The rest of a read whose answers filled the write buffer, or that took its turn of the loop.
        self._rest: Iterator[RemotingCommand] | None = None
        #: It has been put off, and `go_on` follows.
        self._is_in_line = False
        #: Of the last read, all of which is kept until its requests are handled.
        self.read_bytes = 0
        #: It isn't the peer's fault that nothing comes: see `stop_reading`.
        self.is_stopped = False

    def _receive(self, commands: Iterator[RemotingCommand]) -> None:
        """Handles what was read; what takes too long is left in `_rest`."""
        raise NotImplementedError

    # -- turns --------------------------------------------------------------------------------------------------

    def charge(self, seconds: float) -> None:
        """Somebody has worked so long for its requests elsewhere than in its turns, by `thread_time`."""
        # As of `last_read`, see `is_busy`.
        forgiven_s = (monotonic() - self.last_read) * CHEAP_SHARE
        self._recent_s = min(max(self._recent_s, forgiven_s) + seconds, forgiven_s + MOST_S)
        self._longest_turn_s = max(self._longest_turn_s, TURN_S)

    def is_busy(self) -> bool:
        """Its turns take more than a small share of the time."""
        return self._recent_s - (monotonic() - self.last_read) * CHEAP_SHARE > CHEAP_S

    def forgiven_at(self) -> float:
        """When all that its turns took is forgiven, s of the monotonic clock, if it takes nothing until then."""
        return self.last_read + self._recent_s / CHEAP_SHARE

    def _is_known_as_cheap(self) -> bool:
        is_known = self._opened < self.last_read > monotonic() - KNOWN_S
        return is_known and (self._longest_turn_s <= SHORT_TURN_S or not self.is_busy())

    @property
    def is_behind(self) -> bool:
        """Requests that have arrived wait for their turn; those that wait for room may do so for ever."""
        return self._is_in_line

    def _wait_for_turn(self) -> None:
        if not self._is_in_line and (self._writable is None or not self._is_server):
            self._is_in_line = True
            self._turns.put_off(self)

    def go_on(self) -> None:
        """Its turn has come, for the requests that wait."""
        self._is_in_line = False
        if self._rest is None or (self._writable is not None and self._is_server) or self._closing:
            return
        commands, self._rest = self._rest, None
        self._receive(commands)
        if self._rest is None:
            self.read_or_stop()

    # -- reading ------------------------------------------------------------------------------------------------

    def read_or_stop(self) -> None:
        """Has the transport read, or not, as the state says (see above)."""
        if self._closing or self._transport is None or self._transport.is_closing():
            return
        is_held_up = self._is_server and (
            self._writable is not None or (self._turns.is_full and not self._is_known_as_cheap())
        )
        if self._rest is None and not self.is_stopped and not is_held_up:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def stop_reading(self) -> None:
        """Reads no more of the frame under way, until `go_on_reading`."""
        self.is_stopped = True
        self.read_or_stop()

    def go_on_reading(self) -> None:
        self.is_stopped = False
        # So long it wasn't the peer that was silent.
        self.last_read = monotonic()
        self.read_or_stop()

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """The peer doesn't take what is sent to it: the write buffer is full."""
        return self._writable is not None

    @property
    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def answers_pile_up(self) -> bool:
        """Very much waits for the server's peers: no answer is to be larger than need be."""
        return self._untaken is not None and self._untaken.is_much

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        if self._untaken is not None:
            self._untaken.full(self)
        self.read_or_stop()

    def resume_writing(self) -> None:
        self._wake_writers()
        if self._rest is not None:
            # Not here: the transport is in the middle of a write.
            self._wait_for_turn()
        else:
            self.read_or_stop()

    def _wake_writers(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            if self._untaken is not None:
                self._untaken.taken(self)

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls it when the peer has taken what fills the write buffer, or is gone; now if it isn't full."""
        if self._writable is None:
            callback()
        else:
            self._writable.add_done_callback(lambda _: callback())

    def limit_writes(self, high_water: int) -> None:
        """With so many unwritten bytes the write buffer is full, not only with WRITE_HIGH_WATER."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high_water)

    async def room_to_write(self, timeout_ms: int) -> int:
        """Waits until the write buffer has room; what is left of `timeout_ms`."""
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
        """Closes the connection with a peer that asks and takes no answers, each of which takes memory.

        A client reads on when its server doesn't; and answers come from elsewhere than from reading, too.
        """
        if self._writable is None or self._transport is None:
            return False
        if self._untaken is not None:
            self._untaken.full(self)
        if self.unwritten_bytes <= (UNTAKEN_LIMIT if self._is_server else ONEWAY_LIMIT):
            return False
        log.warning("closing the connection with %s, which asks and takes no answers", self.address)
        self.abort()
        return True

    def abort(self) -> None:
        """Closes at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
