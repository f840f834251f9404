"""Copies: searches a target queue for the copies of one source queue.

The target queue can also have messages of other producers, copies from other source queues, and copies that were stored
twice. Only their property GANTRY_MIRROR identifies the copies.
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.mirror.cluster import PULL_MESSAGES, Bounds, Cluster
from gantrymq.mirror.origin import SourceQueue, is_same
from gantrymq.protocol.message import MessageExt, MessageQueue

#: Number of target messages in the first step of a search backwards. Each step has twice as many as the one before.
FIRST_STEP = 32
#: Largest number of pulls of a search for an offset. A search that ends early returns a lower offset.
_MAX_PULLS = 256


class NewestCopy(NamedTuple):
    """The result of a search backwards.

    Attributes:
        source_offset: Source offset of the newest copy, or None if there is none.
        target_offset: Target offset of this copy, or -1.
        is_replaced: Whether a newer copy has a source offset at which the source has another message or none.
    """

    source_offset: int | None
    target_offset: int
    is_replaced: bool


class Copies:
    """The copies of `queue` in `target_queue`."""

    def __init__(
        self, source: Cluster, target: Cluster, queue: MessageQueue, target_queue: MessageQueue, origin: SourceQueue
    ) -> None:
        self._source = source
        self._target = target
        self._queue = queue
        self._target_queue = target_queue
        self._origin = origin

    async def newest(self, begin: int, position: int, end: int, source: Bounds) -> NewestCopy:
        """Returns the newest copy before the target offset `end`.

        A copy counts if the source has its message at its offset, or has expired it. The search ends a few messages
        before `position`, a target offset. If it finds a copy that does not count, it continues to `begin`.
        """
        floor = max(begin, position - FIRST_STEP)
        is_replaced = False
        step, skipped = FIRST_STEP, 0
        while (begin if is_replaced else floor) < end:
            start = max(begin if is_replaced else floor, end - step)
            found, is_beyond = await self._last(start, end, source)
            is_replaced |= is_beyond
            if found is not None:
                offset, copy = found
                if await self._is_current(offset, copy, source):
                    return NewestCopy(offset, copy.queue_offset, is_replaced)
                is_replaced = True
                # A source that has lost a few messages, or all: the next copy to compare is farther away each time.
                end = copy.queue_offset - skipped
                if copy.queue_offset >= position:
                    # The newest copy before the position is always compared.
                    end = max(end, position)
                skipped = min(2 * skipped + 1, PULL_MESSAGES)
            else:
                end = start
            step = min(2 * step, PULL_MESSAGES)
        return NewestCopy(None, -1, is_replaced)

    async def _last(self, start: int, end: int, source: Bounds) -> tuple[tuple[int, MessageExt] | None, bool]:
        """Returns the last copy of the target offsets `start` to `end` - 1, with its source offset.

        Copies of offsets that the source does not have yet are left out. The second result is true if there are any.
        """
        found: tuple[int, MessageExt] | None = None
        is_beyond = False
        while start < end:
            pulled = await self._target.pull(self._target_queue, start)
            for message in pulled.messages:
                offset = self._origin.offset_of(message) if message.queue_offset < end else None
                if offset is not None and offset >= source.end:
                    is_beyond = True
                elif offset is not None:
                    found = offset, message
            if pulled.next_offset <= start:
                break
            start = pulled.next_offset
        return found, is_beyond

    async def _is_current(self, offset: int, copy: MessageExt, source: Bounds) -> bool:
        if offset < source.begin:
            return True
        for message in (await self._source.pull(self._queue, offset, 1)).messages:
            if message.queue_offset == offset and not message.is_damaged:
                return is_same(message, copy)
        # Compaction has removed the message.
        return True

    async def first(self, source_offset: int, start: int, end: int) -> int:
        """Returns the target offset of the first copy from `source_offset` on, or a lower one.

        `start` is a target offset before this copy. All copies after `end` have higher source offsets.
        """
        for _ in range(_MAX_PULLS):
            if start >= end:
                break
            pulled = await self._target.pull(self._target_queue, start)
            for message in pulled.messages:
                offset = self._origin.offset_of(message)
                if message.queue_offset < end and offset is not None and offset >= source_offset:
                    return message.queue_offset
            if pulled.next_offset <= start:
                break
            start = min(pulled.next_offset, end)
        return start
