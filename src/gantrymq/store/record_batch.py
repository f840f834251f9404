"""Many records of one queue that go into the store together (`CommitLog.asyncPutMessages`).

They are encoded one by one, before anybody knows where they will stand; that takes most of the time and may be spread
over as long as it needs. `append_batch` then puts their places in and copies them, 0.5 us a record in place of 6 us,
so that they get successive queue offsets in one short step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from struct import Struct
from struct import error as StructError
from time import time

from gantrymq.errors import RecordError
from gantrymq.protocol.record import HOST_SIZE_V4, encode_record, offset_of
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_crc import fill_crc, reserve_crc

#: A record's queue offset and physical offset, which are neighbours, and its store timestamp.
_PLACES = Struct(">qq")
_PLACES_AT = offset_of("queue_offset")
_TIMESTAMP = Struct(">q")


class RecordBatch:
    """Records on their way into `queue`; what they have in common is given here, as in `MessageStore.append`."""

    def __init__(
        self,
        queue: ConsumeQueue,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        *,
        with_crc: bool,
    ) -> None:
        self.queue = queue
        self.with_crc = with_crc
        is_v6 = len(born_host) != HOST_SIZE_V4
        self._sys_flag = (
            sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
            | (BORN_HOST_V6 if is_v6 else 0)
            | (STORE_HOST_V6 if len(store_host) != HOST_SIZE_V4 else 0)
        )
        self._born_timestamp = born_timestamp
        self._born_host = born_host
        self._store_host = store_host
        self._reconsume_times = reconsume_times
        self.timestamp_at = offset_of("store_timestamp") + (len(born_host) - HOST_SIZE_V4)
        self.records: list[bytes] = []
        self.sizes: list[int] = []
        self.tags_codes: list[int] = []

    def __len__(self) -> int:
        return len(self.records)

    def add(self, flag: int, body: bytes, properties: bytes, tags_code: int) -> None:
        """Encodes a record. Raises RecordError for a field out of range."""
        if self.with_crc:
            properties = reserve_crc(properties)
        try:
            record = encode_record(
                self.queue.queue_id,
                flag,
                0,
                0,
                self._sys_flag,
                self._born_timestamp,
                self._born_host,
                0,
                self._store_host,
                self._reconsume_times,
                0,
                body,
                self.queue.topic_bytes,
                properties,
            )
        except StructError as e:
            raise RecordError(f"a message for {self.queue.topic} can't be stored: {e}") from e
        self.records.append(record)
        self.sizes.append(len(record))
        self.tags_codes.append(tags_code)


def append_batch(log: CommitLog, dirty: deque[ConsumeQueue], batch: RecordBatch) -> list[int]:
    """Puts all of a batch at the end of its queue and into the log; returns the records' physical offsets.

    Raises StoreFull or StoreError where there is no room; the first of the records may be stored then.
    """
    queue, sizes = batch.queue, batch.sizes
    now = int(time() * 1000)
    # Of the n-th record the end, counted from the beginning of the first.
    ends = list(accumulate(sizes))
    offsets: list[int] = []
    first, count = 0, len(batch)
    while first < count:
        if queue.position >= queue.limit:
            queue.make_room()
        # The flusher's thread may take the room away: what was there before may still be written to.
        limit = log.limit
        if log.position + sizes[first] > limit:
            log.make_room(sizes[first])
            continue
        begun = ends[first] - sizes[first]
        last = min(
            first + (queue.limit - queue.position) // UNIT_SIZE,
            bisect_right(ends, begun + limit - log.position, first),
            count,
        )
        places = list(accumulate(sizes[first : last - 1], initial=log.position))
        _append_piece(log, queue, batch, first, places, now)
        if not queue.dirty:
            queue.dirty = True
            dirty.append(queue)
        offsets += places
        first = last
    return offsets


def _append_piece(
    log: CommitLog, queue: ConsumeQueue, batch: RecordBatch, first: int, places: list[int], now: int
) -> None:
    """Appends the records from the n-th on, for which there is room, at these physical offsets."""
    count = len(places)
    records, sizes = batch.records[first : first + count], batch.sizes[first : first + count]
    data = bytearray().join(records)
    starts = [place - places[0] for place in places]
    queue_offsets = range(queue.max_offset, queue.max_offset + count)
    _each(
        map(
            _PLACES.pack_into,
            repeat(data),
            [start + _PLACES_AT for start in starts],
            queue_offsets,
            places,
        )
    )
    _each(map(_TIMESTAMP.pack_into, repeat(data), [start + batch.timestamp_at for start in starts], repeat(now)))
    if batch.with_crc:
        data = bytearray().join(
            fill_crc(bytes(data[start : start + size])) for start, size in zip(starts, sizes, strict=True)
        )
    units = Struct(">" + count * "qiq").pack(
        *chain.from_iterable(zip(places, sizes, batch.tags_codes[first : first + count], strict=True))
    )
    # As in `MessageStore.append`: the log's position, which says that all is whole, comes last.
    assert queue.mapping is not None
    assert log.mapping is not None
    queue.mapping[queue.position : queue.position + len(units)] = units
    start = places[0] - log.base
    log.mapping[start : start + len(data)] = data
    queue.position += len(units)
    queue.max_offset += count
    log.position += len(data)
    log.store_timestamp = now


def _each(results: Iterator[object]) -> None:
    """Has an iterator run through, in C."""
    deque(results, maxlen=0)
