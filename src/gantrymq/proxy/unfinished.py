"""UnfinishedMessages: whose long messages are taken in, while their bytes come.

HTTP/2 lets a server say how much each stream may send. A message that fits into the first window of its stream needs
nobody's leave. A longer one gets the rest of its bytes let in when there is room for all of them: the windows of those
that must wait stay shut, and open in the order in which they came. Who got room and doesn't use it loses it to those
who wait. (`remoting/unfinished_frames.py` does the same for frames; there nothing but not reading keeps bytes out.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: For long messages of all clients together. One that is longer still is let in when it is alone.
ROOM_BYTES = 64 * 1024 * 1024
#: What may lie in buffers: those messages, and the first windows of streams.
MOST_HELD_BYTES = ROOM_BYTES + 32 * 1024 * 1024
#: So long one may take whatever it has to send, s, and so many bytes each second more; only if others wait.
GRACE_S = 5.0
SLOWEST_BYTES_PER_S = 256 * 1024


class Call(Protocol):
    """What waits."""

    @property
    def connection(self) -> object: ...

    def room_given(self, size: int) -> None:
        """It may send so many bytes more."""

    def room_taken(self) -> None:
        """It was too slow, and is refused."""


@dataclass(slots=True, eq=False)
class _Place:
    call: Call
    size: int
    #: When it must be done if others wait, s.
    until: float = 0.0


class UnfinishedMessages:
    """Of one server; a plain table that is told the time."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes
        self._given = 0
        self._given_to: dict[object, int] = {}
        self._places: dict[Call, _Place] = {}
        #: In the order in which they came.
        self._waiting: dict[Call, int] = {}
        #: In buffers, of all calls.
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """More lies in buffers than may: who brings the next bytes of an unfinished message is refused."""
        return self.held_bytes > MOST_HELD_BYTES + max(0, self._given - self._room_bytes)

    def ask(self, call: Call, size: int, now: float) -> None:
        """A call wants to send so many bytes more than its window lets it; it is told at once, or later."""
        if call in self._waiting:
            return
        if self._fits(call, size):
            self._give(call, size, now)
        else:
            self._waiting[call] = size

    def done(self, call: Call, now: float) -> None:
        """Its message is whole, or the call has ended; once more does no harm."""
        self._waiting.pop(call, None)
        place = self._places.pop(call, None)
        if place is None:
            return
        self._given -= place.size
        connection = call.connection
        left = self._given_to.pop(connection) - place.size
        if left:
            self._given_to[connection] = left
        self._let_in(now)

    def look(self, now: float) -> None:
        """Refuses those that are too slow for the others."""
        if not self._waiting:
            return
        for place in [place for place in self._places.values() if place.until < now]:
            place.call.room_taken()

    def _let_in(self, now: float) -> None:
        for call, size in list(self._waiting.items()):
            # One that doesn't fit for its own connection's sake holds up nobody else.
            if self._fits(call, size):
                del self._waiting[call]
                self._give(call, size, now)
            elif self._given_to.get(call.connection, 0) + size <= self._room_bytes // 2:
                return

    def _fits(self, call: Call, size: int) -> bool:
        if not self._given:
            return True
        # One connection gets half of it.
        of_connection = self._given_to.get(call.connection, 0)
        return self._given + size <= self._room_bytes and of_connection + size <= self._room_bytes // 2

    def _give(self, call: Call, size: int, now: float) -> None:
        place = self._places.get(call)
        if place is None:
            place = self._places[call] = _Place(call, 0)
        place.size += size
        place.until = now + GRACE_S + place.size / SLOWEST_BYTES_PER_S
        self._given += size
        self._given_to[call.connection] = self._given_to.get(call.connection, 0) + size
        call.room_given(size)
