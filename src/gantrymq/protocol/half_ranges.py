"""Ranges of half messages, as END_HALF_MESSAGES (31037) names them: all of a transaction's on a broker in one request.

    per range: int64 queue offset of the first half message | int64 its physical offset | int32 how many

In the order of the queue; no half message is in two ranges. The request is GantryMQ's own, brokers of Java answer
REQUEST_CODE_NOT_SUPPORTED; so is the batch of half messages that makes such ranges: a SEND_BATCH_MESSAGE whose sysFlag
has TRANSACTION_PREPARED, which Java's refuse with MESSAGE_ILLEGAL. The properties of its header, PGROUP and
CHECK_IMMUNITY_TIME_IN_SECONDS, are those of all its messages; the answer has the place of the first one, and the others
stand right behind it, in queue and log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple, overload

from gantrymq.errors import BodyError

#: The property that marks a half message that came in a batch, and how the properties of such ones end.
GANTRY_HALF = "GANTRY_HALF"
HALF_MARK = f"\x02{GANTRY_HALF}\x01true\x02".encode()
#: So many ranges one request has at most: of half messages in batches of 1,000 that is 50,000,000.
MAX_RANGES = 50_000

_RANGE = Struct(">qqi")


class HalfRange(NamedTuple):
    """`number` half messages from the queue offset `half_offset` on; the first one's place in the log."""

    half_offset: int
    physical_offset: int
    number: int

    @property
    def end(self) -> int:
        return self.half_offset + self.number


class HalfRanges(Sequence[HalfRange]):
    """The ranges in a body, which are decoded when they are asked for; `check` says whether they may be used."""

    def __init__(self, body: bytes) -> None:
        """Raises BodyError for a body of another length, none or too many of them."""
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
        """A range that is one, behind that before it. Raises BodyError."""
        found = self[index]
        after = self[index - 1].end if index else 0
        if found.number <= 0 or found.half_offset < after or found.physical_offset < 0:
            raise BodyError(f"{found} is no range of half messages, or not behind that before it")
        return found

    def has(self, half_offset: int) -> bool:
        """Whether a half message is in one of them."""
        return self.overlap(half_offset, half_offset + 1)

    def overlap(self, start: int, end: int) -> bool:
        """Whether one of the half messages from `start` up to `end` is in one of them."""
        at = bisect_left(range(len(self)), end, key=lambda i: self[i].half_offset) - 1
        return at >= 0 and start < self[at].end


def encode_half_ranges(ranges: Iterable[HalfRange]) -> bytes:
    return b"".join([_RANGE.pack(*each) for each in ranges])
