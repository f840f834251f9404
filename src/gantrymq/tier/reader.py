"""TierReader: reads messages from the objects of a tier, through a small cache of blocks. Its methods block.

The objects may be damaged. A message that is damaged is skipped, as one of a damaged queue on the broker's disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import RecordError, StoreError
from gantrymq.limits import MIB
from gantrymq.logs import peer_log
from gantrymq.protocol.command import MAX_FRAME_LENGTH
from gantrymq.protocol.record import FIXED_SIZE_V4, Record, decode_record, store_timestamp_at, unpacker
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.store.index_file import ENTRY, ENTRY_SIZE
from gantrymq.store.index_keys import KeyHash
from gantrymq.store.key_lookup import KeyQuery
from gantrymq.system import threads
from gantrymq.system.clock import monotonic
from gantrymq.tier.catalog import Segment, TierRange
from gantrymq.tier.objects import Objects
from gantrymq.tier.segment import INDEX, LOG, QUEUES, object_name

log = peer_log(__name__)

#: Size of a block that is read at once, in bytes, and of all cached blocks.
BLOCK_BYTES = MIB
CACHE_BYTES = 32 * MIB
#: Maximum number of units that one read checks.
_UNITS = 1000
#: A read ends after this time, in seconds, if it has checked a message. The messages of a queue can be far apart.
_READ_S = 1.0
#: A search by key reads the index in pieces of this size, in bytes.
_INDEX_PIECE_BYTES = 200_000 * ENTRY_SIZE

_hash_of_entry = Struct(">i").pack
_record_size = unpacker("size")

_ANOTHER_RECORD = "another record is at its position"


class TierMessages(NamedTuple):
    """The records found by a read, oldest first, and the queue offset from which the next read continues."""

    records: Sequence[bytes]
    next_offset: int


class _Object(NamedTuple):
    """An object of a segment, with its size in bytes."""

    name: str
    size: int


class TierReader:
    """Reads the segments in `objects`. Several threads can use it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threads.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cached = 0

    def messages(
        self,
        part: TierRange,
        queue: tuple[str, int],
        offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
    ) -> TierMessages:
        """Returns records of a range, at least one unless none matches.

        Args:
            part: The range that contains the offset.
            queue: The topic and the queue id.
            offset: The first queue offset to read.
            max_messages: Maximum number of records.
            max_bytes: Maximum size of the records, in bytes. The first one may be larger.
            tags_codes: Only records with one of these tags codes are returned; None accepts all.

        Raises:
            OSError: The objects can't be read.
            StoreError: An object is shorter than its manifest says.
        """
        deadline = monotonic() + _READ_S
        count = min(part.end - offset, _UNITS)
        begin = part.position + (offset - part.first) * UNIT_SIZE
        units = self._bytes(_object(part.segment, QUEUES), begin, count * UNIT_SIZE)
        records: list[bytes] = []
        total = 0
        first = offset
        for physical_offset, size, tags_code in UNIT.iter_unpack(units):
            if len(records) >= max_messages or (records and total + size > max_bytes):
                break
            if offset > first and monotonic() >= deadline:
                break
            if size != FILLER_SIZE and (tags_codes is None or tags_code in tags_codes):
                record = self._record(part.segment, queue, offset, physical_offset, size)
                if record is not None:
                    records.append(record)
                    total += size
            offset += 1
        return TierMessages(records, offset)

    def offset_by_time(self, part: TierRange, timestamp_ms: int, *, upper: bool) -> int:
        """Returns the first queue offset of a range that was stored at or after the time; with `upper`, after it.

        Returns the end of the range if there is none. Raises as `messages` does.
        """
        low, high = part.first, part.end
        while low < high:
            middle = (low + high) // 2
            stored = self._store_time(part, middle)
            if stored < timestamp_ms or (upper and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return low

    def _store_time(self, part: TierRange, offset: int) -> int:
        """Returns the store timestamp of a message in ms; -1 for a damaged one. Reads only a few bytes."""
        at = part.position + (offset - part.first) * UNIT_SIZE
        unit = self._few_bytes(_object(part.segment, QUEUES), at, UNIT_SIZE)
        physical_offset, size, _ = UNIT.unpack(unit)
        at = physical_offset - part.segment.base
        if size < FIXED_SIZE_V4 or not 0 <= at <= part.segment.size - FIXED_SIZE_V4:
            return -1
        return store_timestamp_at(self._few_bytes(_object(part.segment, LOG), at, FIXED_SIZE_V4), 0)

    def with_key(self, segment: Segment, query: KeyQuery, max_bytes: int) -> list[bytes]:
        """Returns the newest records of a segment that a search by key finds, newest first.

        Reads the whole index of the segment, unless `query.max_num` records are found or the next one does not fit into
        `max_bytes`. Raises as `messages` does.
        """
        records: list[bytes] = []
        total = 0
        for physical_offset in self._offsets_of(segment, KeyHash()(query.topic + b"#" + query.key)):
            if len(records) >= query.max_num:
                break
            at = physical_offset - segment.base
            if not 0 <= at <= segment.size - FIXED_SIZE_V4:
                continue
            size = _record_size(self._bytes(_object(segment, LOG), at, FIXED_SIZE_V4), 0)[0]
            data, record, _ = self._decoded(segment, physical_offset, size)
            # Another key can have the same hash.
            if record is None or not query.matches(record.topic, record.properties):
                continue
            if not query.begin_ms <= record.store_timestamp <= query.end_ms:
                continue
            total += size
            if total > max_bytes:
                break
            records.append(data)
        return records

    def _offsets_of(self, segment: Segment, key_hash: int) -> Iterator[int]:
        """Yields the physical offsets of the index entries with this hash, newest first, each one once."""
        source, wanted = _object(segment, INDEX), _hash_of_entry(key_hash)
        last = -1
        end = segment.index_size
        while end:
            start = max(end - _INDEX_PIECE_BYTES, 0)
            # Not through the cache, which blocks of the index would fill.
            piece = self._few_bytes(source, start, end - start)
            at = piece.rfind(wanted)
            while at >= 0:
                entry_at = at // ENTRY_SIZE * ENTRY_SIZE
                if at == entry_at:
                    physical_offset = ENTRY.unpack_from(piece, at)[1]
                    if physical_offset != last:
                        last = physical_offset
                        yield physical_offset
                    entry_at -= ENTRY_SIZE
                at = piece.rfind(wanted, 0, max(entry_at + len(wanted), 0))
            end = start

    def _record(
        self, segment: Segment, queue: tuple[str, int], offset: int, physical_offset: int, size: int
    ) -> bytes | None:
        """Returns the record of a unit; None if it is damaged."""
        topic, queue_id = queue
        data, record, problem = self._decoded(segment, physical_offset, size)
        if record is not None:
            if (record.queue_offset, record.queue_id, record.topic) == (offset, queue_id, topic.encode()):
                return data
            problem = _ANOTHER_RECORD
        log.warning(
            "message %d of %s-%d in the segment %020d of %s is skipped: %s",
            offset,
            topic,
            queue_id,
            segment.base,
            self._objects,
            problem,
        )
        return None

    def _decoded(self, segment: Segment, physical_offset: int, size: int) -> tuple[bytes, Record | None, str]:
        """Returns the bytes at an offset and their record, or None and the problem if no such record is there."""
        at = physical_offset - segment.base
        # A damaged entry must not make this read a whole segment.
        if not FIXED_SIZE_V4 <= size <= MAX_FRAME_LENGTH or not 0 <= at <= segment.size - size:
            return b"", None, "its entry points to no record of the segment"
        data = self._bytes(_object(segment, LOG), at, size)
        try:
            record = decode_record(data)
        except RecordError as e:
            return b"", None, str(e)
        if (record.size, record.physical_offset) != (size, physical_offset):
            return b"", None, _ANOTHER_RECORD
        return data, record, ""

    def _few_bytes(self, source: _Object, start: int, size: int) -> bytes:
        """Does the same as `_bytes` without the cache."""
        data = self._objects.read(source.name, start, size)
        if len(data) < size:
            raise self._too_short(source)
        return data

    def _bytes(self, source: _Object, start: int, size: int) -> bytes:
        """Returns `size` bytes of an object. Raises OSError, and StoreError if the object is too short."""
        end = start + size
        parts = []
        for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            begin = number * BLOCK_BYTES
            parts.append(self._block(source, number)[max(start - begin, 0) : end - begin])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block(self, source: _Object, number: int) -> bytes:
        """Returns a block of an object; the last one may be smaller. Raises as `_bytes`."""
        key = source.name, number
        with self._lock:
            if (block := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
                return block
        start = number * BLOCK_BYTES
        # An incomplete block must not be cached: the next read may be complete.
        block = self._few_bytes(source, start, min(BLOCK_BYTES, source.size - start))
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self._cached += len(block)
            while self._cached > CACHE_BYTES:
                self._cached -= len(self._blocks.popitem(last=False)[1])
        return block

    def _too_short(self, source: _Object) -> StoreError:
        return StoreError(f"{self._objects}/{source.name} is shorter than its manifest says")


def _object(segment: Segment, directory: str) -> _Object:
    """Returns the log, the units or the index of a segment."""
    sizes = {LOG: segment.size, QUEUES: segment.units_size, INDEX: segment.index_size}
    return _Object(object_name(directory, segment.name), sizes[directory])
