"""Compactor: writes new segments with the last message of each key (`CompactionLog.compactAndReplace`).

A compaction reads the closed segments twice. First it collects the last queue offset of each key of the messages that
are new since the last compaction, up to a number of keys. Then it copies each message unless a later one of these has
the same key. If the keys are too many for the memory, the next compaction continues with the remaining messages.

A message without a body deletes its key. It is kept for a day, so that a consumer that lags or was stopped receives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import Record, decode_record
from gantrymq.store.compaction.compaction_log import COMPACTING, CompactionLog
from gantrymq.store.compaction.segment import CopiedRecord, Segment, SparseUnit
from gantrymq.store.mapped_file import sync_directory

#: Memory for one key in the table of a compaction, in bytes: a digest, an offset, and their entry.
_BYTES_OF_KEY = 200
_DIGEST_BYTES = 16


def key_of(record: Record) -> bytes:
    """Returns the key of a message: its whole property KEYS. It is empty if the message has no key."""
    return find_property(record.properties, b"KEYS") or b""


class Compactor:
    """One compaction of a log. `position` is the queue offset of the last message of the compaction before it.

    Attributes:
        position: The queue offset of the last message of this compaction, after `steps` has ended.
        removed: Number of removed messages.
        is_complete: False if the memory was too small for the keys of all new messages. The next compaction continues.
    """

    def __init__(self, log: CompactionLog, position: int, *, max_bytes: int, tombstones_from_ms: int) -> None:
        """Creates a compaction with at most `max_bytes` of memory. Keeps tombstones stored since a time."""
        self.position = position
        self.removed = 0
        self.is_complete = True
        self._log = log
        self._version = log.version
        self._old = log.closed_segments
        self._new: list[Segment] = []
        self._begin = position
        self._max_keys = max(max_bytes // _BYTES_OF_KEY, 1)
        self._tombstones_from_ms = tombstones_from_ms
        #: Digest of a key -> the queue offset of its last message.
        self._last: dict[bytes, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether the closed segments have new messages, or the last compaction was interrupted by an error."""
        return self._log.is_replacing or self._has_new

    @property
    def _has_new(self) -> bool:
        return bool(self._old) and self._old[-1].last > self._begin

    def __repr__(self) -> str:
        return f"<Compactor of {self._log!r}>"

    def is_of(self, log: CompactionLog) -> bool:
        """Returns whether this is a compaction of a log."""
        return self._log is log

    @property
    def is_valid(self) -> bool:
        """Whether the log has not been cut off or deleted since the creation of the compaction."""
        return self._version == self._log.version and not self._log.is_deleted

    def steps(self) -> Iterator[None]:
        """Writes the new segments, with a step for each message. Raises StoreFull or StoreError.

        Completes an interrupted compaction before.
        """
        if self._log.is_replacing:
            self._log.finish_replacing()
            self._old = self._log.closed_segments
        if not self._has_new:
            return
        self._log.delete_compacting()
        yield from self._collect_keys()
        for segment in self._old:
            for unit, data in segment.records():
                if unit.queue_offset > self.position or self._is_kept(unit, data):
                    self._write(CopiedRecord(data, unit.tags_code, unit.store_time, unit.queue_offset))
                else:
                    self.removed += 1
                yield
        if self._new:
            self._new[-1].finish()

    def _collect_keys(self) -> Iterator[None]:
        for segment in self._old:
            if segment.last <= self._begin:
                continue
            for unit, data in segment.records():
                if unit.queue_offset > self._begin:
                    digest, _ = _digest_and_body(data)
                    if digest not in self._last and len(self._last) >= self._max_keys:
                        self.is_complete = False
                        return
                    self._last[digest] = self.position = unit.queue_offset
                yield
        self.position = max(self.position, self._old[-1].last)

    def _is_kept(self, unit: SparseUnit, data: memoryview) -> bool:
        digest, has_body = _digest_and_body(data)
        if self._last.get(digest, -1) > unit.queue_offset:
            return False
        return has_body or unit.store_time >= self._tombstones_from_ms

    def _write(self, record: CopiedRecord) -> None:
        if not self._new or not self._new[-1].fitting([record]):
            log, base = self._log, 0
            if self._new:
                self._new[-1].finish()
                base = self._new[-1].base + log.sizes.log
            segment = Segment(log.log_directory / COMPACTING, log.unit_directory / COMPACTING, base, log.sizes)
            segment.create()
            self._new.append(segment)
        self._new[-1].append([record])

    def sync(self) -> None:
        """Flushes the new segments to disk. May run in a thread. Raises OSError or SyncFailed."""
        for segment in self._new:
            segment.sync()
        for segment in self._new[-1:]:
            sync_directory(segment.log_path.parent)
            sync_directory(segment.unit_path.parent)

    def finish(self) -> None:
        """Replaces the old segments by the new ones. Raises OSError or StoreError."""
        if self.removed:
            self._log.replace(self._old, self._new)
        else:
            self._log.delete_compacting()

    def give_up(self) -> None:
        """Deletes the new segments."""
        self._log.delete_compacting()


def _digest_and_body(data: memoryview) -> tuple[bytes, bool]:
    """Returns a digest of a message's key, which needs the same memory for each key, and whether it has a body.

    Raises StoreError if the record is damaged: its removal must not be a side effect.
    """
    try:
        record = decode_record(data, check_crc=False)
    except RecordError as e:
        raise StoreError(f"a record of a compaction log is damaged: {e}") from e
    return blake2b(key_of(record), digest_size=_DIGEST_BYTES).digest(), bool(record.body)
