"""TierCatalog: the segments of a tier, and where the messages of a queue are. It is a plain class without I/O."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from gantrymq.store.config import UNIT_SIZE
from gantrymq.tier.segment import QUEUES, Manifest, segment_name, sizes_of

log = logging.getLogger(__name__)

#: Maximum number of ranges of queues in memory. A range takes about 200 bytes.
_MOST_RANGES = 500_000


class Segment(NamedTuple):
    """A segment, with the fields of its manifest, without the ranges of queues. `units_size` is in bytes, too."""

    base: int
    size: int
    begin_timestamp: int
    end_timestamp: int
    index_size: int
    units_size: int
    id: str

    @property
    def name(self) -> str:
        return segment_name(self.base, self.id)

    @property
    def end(self) -> int:
        return self.base + self.size


class TierRange(NamedTuple):
    """The messages of a queue in a segment, from the queue offset `first` to before `end`.

    The first of their units is at byte `position` of the segment's units.
    """

    segment: Segment
    first: int
    end: int
    position: int


class TierCatalog:
    """The segments of a tier in memory. One thread changes them, and another one may read them at the same time.

    With more than `most_ranges` ranges of queues, the oldest segments stay in the tier, but consumers do not see
    their messages.
    """

    def __init__(self, most_ranges: int = _MOST_RANGES) -> None:
        self._most_ranges = most_ranges
        self._segments: list[Segment] = []
        self._ranges: dict[tuple[str, int], list[TierRange]] = {}
        self._count = 0
        #: Segments that end at or before this physical offset have no ranges in memory.
        self._hidden_end = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Yields the segments, oldest first."""
        return iter(self._segments)

    def __contains__(self, base: int) -> bool:
        at = bisect_left(self._segments, base, key=lambda segment: segment.base)
        return at < len(self._segments) and self._segments[at].base == base

    @property
    def end(self) -> int:
        """The physical offset at which the newest segment ends; 0 without segments."""
        return self._segments[-1].end if self._segments else 0

    @property
    def size(self) -> int:
        """The size of the log in all segments, in bytes."""
        return sum(segment.size for segment in self._segments)

    def add(self, manifest: Manifest) -> None:
        """Adds a segment. Replaces a segment with the same base."""
        if manifest.base in self:
            self.remove(manifest.base)
        segment = Segment(
            manifest.base,
            manifest.size,
            manifest.begin_timestamp,
            manifest.end_timestamp,
            manifest.index_size,
            sizes_of(manifest)[QUEUES],
            manifest.id,
        )
        if segment.end > self._hidden_end:
            position = 0
            for part in manifest.queues:
                found = TierRange(segment, part.first, part.first + part.count, position)
                insort(self._ranges.setdefault((part.topic, part.queue_id), []), found)
                position += part.count * UNIT_SIZE
            self._count += len(manifest.queues)
        insort(self._segments, segment)
        while self._count > self._most_ranges and self._hide_oldest():
            pass

    def remove(self, base: int) -> None:
        """Removes the segment with this base, if there is one."""
        self._segments = [segment for segment in self._segments if segment.base != base]
        self._drop_ranges(base)

    def _hide_oldest(self) -> bool:
        for segment in self._segments[:-1]:
            if segment.end > self._hidden_end:
                log.warning(
                    "the tier has more than %d ranges of queues: consumers don't see the messages of the segment %020d",
                    self._most_ranges,
                    segment.base,
                )
                self._hidden_end = segment.end
                self._drop_ranges(segment.base)
                return True
        return False

    def _drop_ranges(self, base: int) -> None:
        for key, ranges in list(self._ranges.items()):
            kept = [part for part in ranges if part.segment.base != base]
            if len(kept) < len(ranges):
                self._count -= len(ranges) - len(kept)
                if kept:
                    self._ranges[key] = kept
                else:
                    del self._ranges[key]

    # -- queues -------------------------------------------------------------------------------------------------

    def ranges(self, topic: str, queue_id: int, end: int) -> list[TierRange]:
        """Returns the ranges of a queue that end at the queue offset `end` together, oldest first.

        A range belongs to them if the next one starts at its end. Ranges of a deleted topic with the same name, and
        those before a gap, are therefore not among them.
        """
        found: list[TierRange] = []
        for part in reversed(self._ranges.get((topic, queue_id), ())):
            if part.first >= end:
                continue
            if part.end != end:
                break
            found.append(part)
            end = part.first
        found.reverse()
        return found
