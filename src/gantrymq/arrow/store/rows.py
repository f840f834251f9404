"""Reads the range of a task from a commit log: decodes chunks of complete records, and filters the rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.arrow_records import ArrowRecords
from gantrymq.arrow.columns import BODY
from gantrymq.arrow.freed_memory import reuse_freed_memory
from gantrymq.arrow.queues import matches
from gantrymq.arrow.record_batches import pulled_records, record_batches, stored_columns, value_decoder
from gantrymq.arrow.store.options import StoreOptions
from gantrymq.arrow.store.planning import LogRange
from gantrymq.errors import CodecError, CompressionError, RecordError, StoreError
from gantrymq.protocol.record import BLANK_SIZE, FIXED_SIZE_V4, MAGIC_BLANK, decode_records, unpacker
from gantrymq.tier.objects import Objects, open_objects

log = logging.getLogger(__name__)

#: The size of a chunk, in bytes. A longer record is read as a whole.
CHUNK_BYTES = 4 * 1024 * 1024
_ALL_TOPICS = ".*"
_unpack_head = unpacker("size", "magic")


def read_range(part: LogRange, options: StoreOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `part`, in order. Raises StoreError for unreadable files and invalid records."""
    reuse_freed_memory()
    try:
        file = _open(part)
    except OSError as e:
        raise StoreError(f"can't read {part.path}: {e.strerror or e}") from e
    rows = _Rows(part, options, columns)
    try:
        position = part.start
        while position < part.end:
            data = file.read(min(CHUNK_BYTES, part.end - position), position)
            try:
                records = rows.read(data, position)
                if not records.length:
                    if len(data) >= BLANK_SIZE and _unpack_head(data)[1] == MAGIC_BLANK:
                        return
                    records = rows.read(_long_record(file, part, position, data), position)
                yield from rows.decode(records)
            except (CodecError, CompressionError) as e:
                raise type(e)(f"{part.path} from {position} on: {e}") from e
            except RecordError as e:
                good = _good_records(data, part.base + position, check_crc=options.refuses_wrong_crc)
                yield from rows.decode(rows.read(data[:good], position))
                raise StoreError(f"{part.path} is damaged at {position + good}: {e}") from e
            position += records.length
    except StoreError as e:
        if options.fail_on_data_loss:
            raise
        log.warning("left out what follows in %s (failOnDataLoss=false): %s", part, e)
    finally:
        file.close()


class _File:
    """A file of the log on this machine."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size: int, position: int) -> bytes:
        return os.pread(self._fd, size, position)

    def close(self) -> None:
        os.close(self._fd)


class _TierFile:
    """A file of the log in a tier."""

    def __init__(self, tier: str, name: str) -> None:
        self._objects = _objects(tier)
        self._name = name

    def read(self, size: int, position: int) -> bytes:
        """Returns the bytes. Raises StoreError, also at the end of the file."""
        try:
            data = self._objects.read(self._name, position, size)
        except OSError as e:
            raise StoreError(f"can't read {self._name} in {self._objects}: {e}") from e
        if len(data) < size:
            raise StoreError(f"{self._name} in {self._objects} ends at {position + len(data)}")
        return data

    def close(self) -> None:
        """Does nothing: an object has no descriptor."""


@lru_cache(maxsize=4)
def _objects(tier: str) -> Objects:
    """Returns the objects of a tier. The ranges of a read share them, because connecting takes most of a second."""
    return open_objects(tier)


def _open(part: LogRange) -> _File | _TierFile:
    """Opens the file of a range. Raises OSError, StoreError or MissingExtra."""
    return _TierFile(part.tier, str(part.path)) if part.tier else _File(part.path)


class _Rows:
    def __init__(self, part: LogRange, options: StoreOptions, columns: pa.Schema) -> None:
        self._part = part
        self._options = options
        self._columns = columns
        self._values = value_decoder(options.body, columns)
        #: The columns to read from each record. If topics are filtered, bodies are read later, only for matching rows.
        self._record_columns = stored_columns(columns, options.body)
        if (options.topics or options.pattern) and BODY in self._record_columns:
            self._record_columns.remove(BODY)
        self._is_wanted: dict[str, bool] = {}

    def read(self, data: bytes, position: int) -> ArrowRecords:
        """Parses the complete records of `data`, which are the bytes from `position` of the file on.

        Raises RecordError for an invalid record, and for a record that contains another position.
        """
        options = self._options
        records = pulled_records(
            data, self._record_columns, options.corrupt_bodies, check_crc=options.check_crc, part=True
        )
        positions = records.starts + (self._part.base + position)
        if (wrong := np.flatnonzero(records.physical_offsets != positions)).size:
            raise RecordError(f"the record at {positions[wrong[0]]} says it is at {records.physical_offsets[wrong[0]]}")
        return records

    def decode(self, records: ArrowRecords) -> Iterator[pa.RecordBatch]:
        """Yields the rows that pass the filters. Raises CompressionError and CodecError for a corrupt body."""
        topics, numbers = records.numbered_topics()
        keep = np.array([self._wants(topic) for topic in topics], np.bool_)
        wanted = pa.array(keep[numbers])
        options, times = self._options, records.store_timestamps
        if options.starting_ms is not None:
            wanted = pc.and_(wanted, pa.array(times >= options.starting_ms))
        if options.ending_ms is not None:
            wanted = pc.and_(wanted, pa.array(times < options.ending_ms))
        yield from record_batches(
            records,
            self._columns,
            None,
            options.broker_name,
            wanted,
            options.corrupt_bodies,
            self._values,
            check_crc=options.check_crc,
        )

    def _wants(self, topic: str) -> bool:
        found = self._is_wanted.get(topic)
        if found is None:
            options = self._options
            found = topic in options.topics if options.topics else matches(options.pattern or _ALL_TOPICS, topic)
            self._is_wanted[topic] = found
        return found


def _long_record(file: _File | _TierFile, part: LogRange, position: int, data: bytes) -> bytes:
    size = _unpack_head(data)[0] if len(data) >= FIXED_SIZE_V4 else 0
    if position + size > part.end or size <= len(data):
        raise StoreError(f"{part.path} is damaged at {position}: {len(data)} bytes are left, which hold no record")
    return file.read(size, position)


def _good_records(data: bytes, physical_offset: int, *, check_crc: bool) -> int:
    """Returns the length of the valid records before the first invalid one, in bytes."""
    length = 0
    try:
        for record in decode_records(data, check_crc=check_crc):
            if record.physical_offset != physical_offset + length:
                break
            length += record.size
    except RecordError:
        pass
    return length
