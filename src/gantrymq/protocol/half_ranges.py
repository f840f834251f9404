"""The body of END_HALF_MESSAGES (31037): ranges of half messages that a broker commits or rolls back.

Each range: int64 queue offset of the first half message | int64 its physical offset | int32 number of half messages

Ranges are in queue order and do not overlap. The request is GantryMQ's own. Java's brokers respond with
REQUEST_CODE_NOT_SUPPORTED.

Half messages in such ranges are sent in batches: SEND_BATCH_MESSAGE with TRANSACTION_PREPARED in sysFlag. Java's
brokers respond with MESSAGE_ILLEGAL. PGROUP and CHECK_IMMUNITY_TIME_IN_SECONDS in the header's properties apply to all
messages. The response has the offsets of the first half message. The other half messages of the batch follow it
directly in queue and log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple, overload

from gantrymq.errors import BodyError

#: Property that marks a half message of a batch, and the ending of the properties of each such message.
GANTRY_HALF = "GANTRY_HALF"
HALF_MARK = f"\x02{GANTRY_HALF}\x01true\x02".encode()
#: Largest number of ranges of one request: 50,000,000 half messages in batches of 1,000.
MAX_RANGES = 50_000

_RANGE = Struct(">qqi")


class HalfRange(NamedTuple):
    """A range of `number` half messages from queue offset `half_offset` on. The first is at `physical_offset`."""

    half_offset: int
    physical_offset: int
    number: int

    @property
    def end(self) -> int:
        return self.half_offset + self.number


class HalfRanges(Sequence[HalfRange]):
    """The ranges in a body, decoded on access. Use `check` to validate each one."""

    def __init__(self, body: bytes) -> None:
        """Raises BodyError if the length of `body` is invalid, or if `body` has no or too many ranges."""
        count, rest = divmod(len(body), _RANGE.size)
        if rest or not 0 < count <= MAX_RANGES:
            raise BodyError(f"{len(body)} bytes are not 1 to {MAX_RANGES} ranges of half messages")
        self.body = body

    def __len__(self) -> int:
        return len(self.body) // _RANGE.size

    @overload
    def __getitem__(self, index: int) -> HalfRange: ...
    @overload
    def __getitem__(self, index: slice) -> list[HalfRange]: ...
    def __getitem__(self, index: int | slice) -> HalfRange | list[HalfRange]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return HalfRange(*_RANGE.unpack_from(self.body, index * _RANGE.size))

    def check(self, index: int) -> HalfRange:
        """Validates a range and its order, and returns the range. Raises BodyError."""
        found = self[index]
        after = self[index - 1].end if index else 0
        if found.number <= 0 or found.half_offset < after or found.physical_offset < 0:
            raise BodyError(f"{found} is no range of half messages, or not behind that before it")
        return found

    def has(self, half_offset: int) -> bool:
        """Returns true if a half message is in one of the ranges."""
        return self.overlap(half_offset, half_offset + 1)

    def overlap(self, start: int, end: int) -> bool:
        """Returns true if any half message from `start` up to, not including, `end` is in one of the ranges."""
        at = bisect_left(range(len(self)), end, key=lambda i: self[i].half_offset) - 1
        return at >= 0 and start < self[at].end


def encode_half_ranges(ranges: Iterable[HalfRange]) -> bytes:
    return b"".join([_RANGE.pack(*each) for each in ranges])
