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


class _QueueRanges(NamedTuple):
    """The ranges of a queue, oldest first. Those from the index `start` on follow each other without a gap."""

    parts: list[TierRange]
    start: int


class TierCatalog:
    """The segments of a tier in memory. One thread changes them, and another one may read them at the same time.

    With more than `most_ranges` ranges of queues, the oldest segments stay in the tier, but consumers do not see
    their messages.
    """

    def __init__(self, most_ranges: int = _MOST_RANGES) -> None:
        self._most_ranges = most_ranges
        self._segments: list[Segment] = []
        self._ranges: dict[tuple[str, int], _QueueRanges] = {}
        #: {base of a segment: its queues}.
        self._queues: dict[int, list[tuple[str, int]]] = {}
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
                self._add_range((part.topic, part.queue_id), found)
                position += part.count * UNIT_SIZE
            self._queues[segment.base] = [(part.topic, part.queue_id) for part in manifest.queues]
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

    def _add_range(self, key: tuple[str, int], part: TierRange) -> None:
        known = self._ranges.get(key)
        parts = known.parts if known is not None else []
        if parts and parts[-1] < part and parts[-1].end == part.first:
            # The usual case.
            parts.append(part)
        else:
            self._ranges[key] = _ranges_of(sorted((*parts, part)))

    def _drop_ranges(self, base: int) -> None:
        queues = self._queues.pop(base, [])
        self._count -= len(queues)
        for key in set(queues):
            parts, start = self._ranges[key]
            # In a copy, because another thread may read the list.
            kept = [part for part in parts if part.segment.base != base]
            if not kept:
                del self._ranges[key]
            elif parts[0].segment.base == base:
                self._ranges[key] = _QueueRanges(kept, max(start - len(parts) + len(kept), 0))
            else:
                self._ranges[key] = _ranges_of(kept)

    # -- queues -------------------------------------------------------------------------------------------------

    def ranges(self, topic: str, queue_id: int, end: int) -> list[TierRange]:
        """Returns the ranges of a queue that end at the queue offset `end` together, oldest first.

        A range belongs to them if the next one starts at its end. Ranges of a deleted topic with the same name, and
        those before a gap, are therefore not among them.
        """
        parts, start = self._ranges.get((topic, queue_id), _QueueRanges([], 0))
        while parts:
            stop = bisect_left(parts, end, start, key=lambda part: part.first)
            if stop > start:
                return parts[start:stop] if parts[stop - 1].end == end else []
            # The queue begins in the log before these ranges.
            parts, start = _ranges_of(parts[:start])
        return []


def _ranges_of(parts: list[TierRange]) -> _QueueRanges:
    start = max(len(parts) - 1, 0)
    while start and parts[start - 1].end == parts[start].first:
        start -= 1
    return _QueueRanges(parts, start)
