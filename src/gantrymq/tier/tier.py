"""Tier: the tier of one broker. It decides which log files may be deleted, and reads messages for consumers."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gantrymq.errors import RequestRefused, StoreError
from gantrymq.limits import MIB, TIER_READS
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.record import store_timestamp_at
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.key_lookup import KeyQuery
from gantrymq.system.clock import monotonic
from gantrymq.tier.catalog import TierCatalog, TierRange
from gantrymq.tier.objects import Objects
from gantrymq.tier.pool import TierThreads
from gantrymq.tier.reader import TierReader

T = TypeVar("T")

log = peer_log(__name__)

_READ_THREADS = 4
#: Timeout of a read, in seconds. Clients wait longer for the response.
_READ_TIMEOUT_S = 10.0
#: Maximum size of the records of one read, in bytes.
_READ_BYTES = MIB
#: Maximum number of messages that one read evaluates a SQL92 filter for. This blocks the event loop.
_MATCHED_MESSAGES = 32
#: Maximum duration of a search by key, in seconds. Clients wait longer for the response.
_SEARCH_S = 5.0
_SHORTER = "choose a shorter time range, or repeat it later"


class Tier:
    """The segments in `objects`. All methods must be called on the event loop.

    Attributes:
        catalog: The segments. None until they are loaded, and if they belong to another store.
        lost_segments: Number of log files that were deleted without a copy, because the disk was full.
        failed_reads: Number of reads that failed or timed out.
        messages_out: Number of messages that were read.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.catalog: TierCatalog | None = None
        self.lost_segments = 0
        self.failed_reads = 0
        self.messages_out = 0
        self._reader = TierReader(objects)
        self._threads = TierThreads("gantry-tier-read", _READ_THREADS, TIER_READS)
        self._searching = asyncio.Lock()

    def use(self, catalog: TierCatalog | None) -> None:
        """Sets the segments; None if they are unknown."""
        self.catalog = catalog

    def close(self) -> None:
        """Stops the threads."""
        self._threads.close()

    # -- deletion of log files ----------------------------------------------------------------------------------

    def may_delete(self, begin: int, end: int, is_full: bool) -> bool:
        """See `LowerTier.may_delete`. On a full disk, a file is deleted even if it was not copied."""
        if self.catalog is not None and begin in self.catalog:
            return True
        if is_full:
            self.lost_segments += 1
            log.error(
                "the disk is full: the log from %d to %d is deleted, although it is not in %s", begin, end, self.objects
            )
        return is_full

    def has_messages_of(self, queue: ConsumeQueue) -> bool:
        """See `LowerTier.has_messages_of`. True while the segments are unknown."""
        return self.catalog is None or bool(self._ranges(queue))

    # -- reading ------------------------------------------------------------------------------------------------

    def min_offset(self, queue: ConsumeQueue) -> int:
        """Returns the first queue offset in the tier or in the log. Raises as `get` does."""
        ranges = self._ranges(queue)
        return ranges[0].first if ranges else queue.min_offset

    def segment_time(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Returns when the segment with this queue offset began, in ms. The message was stored at or after it.

        None if the offset is not in the tier. Raises as `get` does.
        """
        part = _range_with(self._ranges(queue), offset)
        return None if part is None else part.segment.begin_timestamp

    async def get(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None = None,
        matches: Callable[[memoryview], bool] | None = None,
    ) -> GetResult:
        """Returns records from a queue offset on that is less than the queue's `min_offset`.

        The arguments are those of `MessageStore.get`, as is the result for an offset before `min_offset`. A result has
        only messages of one segment. Raises RequestRefused if the segments are unknown or can't be read in time.
        """
        ranges = self._ranges(queue)
        min_offset = ranges[0].first if ranges else queue.min_offset
        part = _range_with(ranges, offset)
        if part is None:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, queue.max_offset)
        max_bytes = min(max_bytes, _READ_BYTES)
        if matches is not None:
            max_messages = min(max_messages, _MATCHED_MESSAGES)
        call = partial(
            self._reader.messages, part, (queue.topic, queue.queue_id), offset, max_messages, max_bytes, tags_codes
        )
        found = await self._run(call)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, found.next_offset, min_offset, queue.max_offset)
        result.buffers.extend(record for record in found.records if matches is None or matches(memoryview(record)))
        if result.buffers:
            result.status = GetStatus.FOUND
            result.message_count = len(result.buffers)
            result.size = sum(map(len, result.buffers))
        self.messages_out += result.message_count
        return result

    async def earliest_store_time(self, queue: ConsumeQueue) -> int | None:
        """Returns the store time of the queue's oldest readable message in the tier, in ms.

        None if the tier has no such message. Raises as `get` does.
        """
        for part in self._ranges(queue):
            call = partial(self._reader.messages, part, (queue.topic, queue.queue_id), part.first, 1, _READ_BYTES, None)
            found = await self._run(call)
            if found.records:
                return store_timestamp_at(found.records[0], 0)
        return None

    async def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, upper: bool = False) -> int | None:
        """Returns the same as `MessageStore.offset_by_time` if all messages of the log are newer than the time.

        None if the offset is not in the tier. Raises as `get` does.
        """
        ranges = self._ranges(queue)
        for part in ranges:
            # All records of earlier segments were stored before this one ended.
            if part.segment.end_timestamp < timestamp_ms:
                continue
            found = await self._run(partial(self._reader.offset_by_time, part, timestamp_ms, upper=upper))
            if found < part.end:
                return max(found - 1, ranges[0].first) if upper else found
        return ranges[-1].end - 1 if upper and ranges else None

    async def find(self, query: KeyQuery, before: int, max_bytes: int) -> list[bytes]:
        """Returns the newest records with a key, newest first, from the segments before a physical offset.

        A search by unique key begins with the oldest segment, and ends with the first one that has the key.

        One search runs at a time, so that pulls have the other threads. `max_bytes` is the maximum size of the records,
        in bytes. Raises as `get` does, and if the search takes too long and has found nothing yet.
        """
        if self.catalog is None:
            raise self._unknown()
        deadline = monotonic() + _SEARCH_S
        found: list[bytes] = []
        segments = [
            segment
            for segment in self.catalog
            if segment.base < before
            and segment.begin_timestamp <= query.end_ms
            and segment.end_timestamp >= query.begin_ms
        ]
        if query.is_unique:
            # Its message was stored soon after the id was made, and other messages rarely have the id.
            segments.reverse()
        async with self._searching:
            while segments and len(found) < (1 if query.is_unique else query.max_num) and max_bytes > 0:
                if monotonic() >= deadline:
                    if found:
                        break
                    raise _refusal(f"the tier has too many messages for a search of {_SEARCH_S:.0f} s: {_SHORTER}")
                rest = query._replace(max_num=query.max_num - len(found))
                records = await self._run(partial(self._reader.with_key, segments.pop(), rest, max_bytes))
                max_bytes -= sum(map(len, records))
                found += records
        return found

    def _ranges(self, queue: ConsumeQueue) -> list[TierRange]:
        # A queue that begins at 0 needs no tier, so consumers of new topics do not depend on it.
        if not queue.log_min_offset or not queue.may_have_older:
            return []
        if self.catalog is None:
            raise self._unknown()
        return self.catalog.ranges(queue.topic, queue.queue_id, queue.log_min_offset)

    def _unknown(self) -> RequestRefused:
        return _refusal(f"the segments in {self.objects} are not known yet: try again later")

    async def _run(self, call: Callable[[], T]) -> T:
        """Returns the result of a read. Raises RequestRefused."""
        try:
            return await self._threads.run(call, _READ_TIMEOUT_S)
        except (OSError, StoreError) as e:
            self.failed_reads += 1
            log.warning("%s can't be read: %s", self.objects, e or "no response in time")
            raise _refusal(f"the tier can't be read: try again later ({type(e).__name__})") from e


def _range_with(ranges: list[TierRange], offset: int) -> TierRange | None:
    at = bisect_right(ranges, offset, key=lambda part: part.first) - 1
    return ranges[at] if at >= 0 and offset < ranges[at].end else None


def _refusal(text: str) -> RequestRefused:
    """Returns the error after which consumers repeat their request. They must not skip the messages of the tier."""
    return RequestRefused(ResponseCode.SYSTEM_BUSY, text)
