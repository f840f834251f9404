"""Batches of records that are stored in one queue at once (`CommitLog.asyncPutMessages`).

The records are encoded individually, before their offsets are known. This takes most of the time and can be spread over
several steps. `append_batch` then fills in the offsets and copies the records, in 0.5 us per record instead of 6 us.
The records get successive queue offsets, and are written to one file of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from struct import Struct
from struct import error as StructError

from gantrymq.errors import RecordError, StoreError
from gantrymq.kernels import native
from gantrymq.protocol.record import BLANK_SIZE, HOST_SIZE_V4, Buffer, encode_record, offset_of
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_crc import fill_crc, reserve_crc
from gantrymq.system.clock import time

#: The adjacent fields queue offset and physical offset of a record, and its store timestamp.
_PLACES = Struct(">qq")
_PLACES_AT = offset_of("queue_offset")
_TIMESTAMP = Struct(">q")


class RecordBatch:
    """Records to store in `queue`, with their common fields. The arguments are those of `MessageWriter.append`."""

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

    def add(
        self, flag: int, body: bytes, properties: bytes, tags_code: int, prepared_transaction_offset: int = 0
    ) -> None:
        """Encodes a record and adds it. Raises RecordError if a field is out of range."""
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
                prepared_transaction_offset,
                body,
                self.queue.topic_bytes,
                properties,
            )
        except StructError as e:
            raise RecordError(f"a message for {self.queue.topic} can't be stored: {e}") from e
        self.add_encoded(record, tags_code)

    def add_messages(self, messages: bytes, start: int, most: int, special: bytes) -> int:
        """Encodes up to `most` messages of a batch body (`protocol.batch`) from `start` on, in one call.

        Returns the position of the next message, which must be added with `add`. These are all messages if native code
        is missing, invalid data, and messages with `special` in their properties.
        """
        if native is None or self.with_crc:
            return start
        try:
            records, tags_codes, following = native.batch_records(
                messages,
                start,
                most,
                special,
                self.queue.queue_id,
                self._sys_flag,
                self._born_timestamp,
                self._born_host,
                self._store_host,
                self._reconsume_times,
                self.queue.topic_bytes,
            )
        except OverflowError:
            # The error of `add` names the number that is out of range.
            return start
        self.records += records
        self.sizes += map(len, records)
        self.tags_codes += tags_codes
        return following

    def add_encoded(self, record: bytes, tags_code: int) -> None:
        """Adds an encoded record with this batch's kind of hosts. Its offsets and store time are overwritten."""
        self.records.append(record)
        self.sizes.append(len(record))
        self.tags_codes.append(tags_code)


def append_batch(log: CommitLog, dirty: deque[ConsumeQueue], batch: RecordBatch) -> list[int]:
    """Writes a batch to the end of its queue and into one log file. Returns the physical offsets of the records.

    Raises StoreBusy, StoreFull or StoreError; nothing is stored then. If the process is killed, recovery finds either
    all records or none. After a power failure, the log ends at the first incomplete record. A batch that was not
    acknowledged as flushed can be cut off there, as in Java's store.
    """
    queue, sizes = batch.queue, batch.sizes
    count, size = len(sizes), sum(sizes)
    if size + BLANK_SIZE > log.file_size:
        raise StoreError(f"a batch of {size} bytes doesn't fit into a file of {log.file_size} bytes")
    if log.position + size > log.limit:
        log.preallocate(size)
    # Checked before the offsets are filled in, because a batch that waits for space is tried several times.
    queue.preallocate_for(count)
    now = int(time() * 1000)
    data, units, places = place_records(batch, log.position, now)
    queue.write_next(units)
    try:
        log.write(data)
    except StoreError:
        queue.write_next(bytes(len(units)))
        raise
    # As in `MessageWriter.append`, the log's position makes everything valid and is set last.
    queue.count_written(count)
    if not queue.dirty:
        queue.dirty = True
        dirty.append(queue)
    log.position += size
    log.store_timestamp = now
    return places


def place_records(batch: RecordBatch, position: int, now: int) -> tuple[Buffer, bytes, list[int]]:
    """Returns the records with their offsets filled in, their queue units and their physical offsets.

    `position` is the physical offset of the first record, `now` the store timestamp in milliseconds.
    """
    first = batch.queue.max_offset
    if native is not None and not batch.with_crc:
        data, units, places = native.placed_records(
            batch.records, batch.tags_codes, first, position, now, batch.timestamp_at
        )
        return memoryview(data), units, places
    sizes = batch.sizes
    places = list(accumulate(sizes[:-1], initial=position))
    units = Struct(">" + len(sizes) * "qiq").pack(
        *chain.from_iterable(zip(places, sizes, batch.tags_codes, strict=True))
    )
    return _with_places(batch, places, first, now), units, places


def _with_places(batch: RecordBatch, places: list[int], first: int, now: int) -> bytearray:
    data = bytearray().join(batch.records)
    starts = [place - places[0] for place in places]
    queue_offsets = range(first, first + len(places))
    _each(map(_PLACES.pack_into, repeat(data), [start + _PLACES_AT for start in starts], queue_offsets, places))
    _each(map(_TIMESTAMP.pack_into, repeat(data), [start + batch.timestamp_at for start in starts], repeat(now)))
    if not batch.with_crc:
        return data
    return bytearray().join(
        fill_crc(bytes(data[start : start + size])) for start, size in zip(starts, batch.sizes, strict=True)
    )


def _each(results: Iterator[object]) -> None:
    """Consumes an iterator at C speed."""
    deque(results, maxlen=0)
