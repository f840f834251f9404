"""`ArrowRecords` decodes the records of a pulled buffer into Arrow columns, without a Python object for each record.

`native_records.py` implements it in native code. `numpy_records.py` uses numpy if native code is not installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantrymq.arrow.columns import ARROW_TYPES, READ_COLUMNS, TAGS, Column, Origin
from gantrymq.errors import CompressionError, RecordError
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE, decompress
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.record import FIXED_SIZE_V4, MAGIC_BLANK, unpacker
from gantrymq.protocol.sys_flag import COMPRESSED

Ints = npt.NDArray[np.int64]

#: The largest time in ms whose value in us fits into 64 bits.
_LAST_MS = (2**63 - 1) // 1000
_unpack_head = unpacker("size", "magic")


class ArrowRecords(ABC):
    """The records of a buffer, such as the response to a pull. The buffer has any number of records in succession.

    The buffer must not change while this object is in use. The returned arrays are copies. `length` is the end of the
    last complete record in the buffer.

    Args:
        buffer: The records.
        wanted: Columns that the caller will request, so that an implementation can read them in the same pass.
        check_crc: If true, compares each body with its CRC32.
        part: If true, the buffer is a part of a log file, and can end within a record or at the end of the file.
        max_body_size: The largest decompressed body, in bytes. A larger one can't be decompressed.

    Raises:
        RecordError: A record is incomplete or invalid, or a body has a wrong CRC32.
    """

    def __init__(
        self,
        buffer: bytes | memoryview,
        wanted: Sequence[str] = (),
        *,
        check_crc: bool = True,
        part: bool = False,
        max_body_size: int = MAX_DECOMPRESSED_SIZE,
    ) -> None:
        self._buffer = buffer
        self._max_body_size = max_body_size
        self.length = len(buffer)
        self._read(wanted, check_crc=check_crc, part=part)
        if check_crc and (wrong := self.has_wrong_crc()).any():
            (first,) = np.flatnonzero(wrong)[:1]
            raise RecordError(
                f"offset {self.queue_offsets[first]} of queue {self.queue_ids[first]}: "
                "the body has another CRC32 than its record says"
            )

    @abstractmethod
    def _read(self, wanted: Sequence[str], *, check_crc: bool, part: bool) -> None:
        """Parses the layout of each record. Raises RecordError.

        If `check_crc` is true, the caller will also call `has_wrong_crc`.
        """

    def _ends_at(self, at: int) -> bool:
        """Whether the end of the file, or of this part of it, is the reason why no complete record begins at `at`."""
        if len(self._buffer) - at < FIXED_SIZE_V4:
            return True
        size, magic = _unpack_head(self._buffer, at)
        return magic == MAGIC_BLANK or (size >= FIXED_SIZE_V4 and at + size > len(self._buffer))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ints(self, field: str) -> npt.NDArray[np.int32]:
        """The values of a 32-bit field of `protocol.record.FIELDS`."""

    @abstractmethod
    def longs(self, field: str) -> Ints:
        """The values of a 64-bit field of `protocol.record.FIELDS`."""

    @property
    @abstractmethod
    def starts(self) -> Ints:
        """The position of each record in the buffer."""

    @abstractmethod
    def topics(self) -> pa.Array:
        """The topics of the records, as strings."""

    @abstractmethod
    def numbered_topics(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """The distinct topics, and for each record the index of its topic."""

    @abstractmethod
    def property_values(self, name: str) -> pa.Array:
        """The values of one property as strings; null if a record lacks it."""

    @abstractmethod
    def property_map(self) -> pa.Array:
        """All properties, as a map of strings for each record."""

    @abstractmethod
    def stored_bodies(self, numbers: Ints | None = None) -> pa.Array:
        """The stored bodies of the records with these (ascending) indexes, or of all records."""

    @abstractmethod
    def stored_body(self, i: int) -> bytes:
        """One body as stored."""

    @abstractmethod
    def store_host(self, i: int) -> bytes:
        """The store host field of one record."""

    @abstractmethod
    def has_wrong_crc(self) -> npt.NDArray[np.bool_]:
        """For each record: true if its body doesn't match the CRC32 in the record."""

    @property
    def has_compressed(self) -> bool:
        """Whether any body is compressed."""
        return bool((self._sys_flags & COMPRESSED).any())

    @cached_property
    def _sys_flags(self) -> npt.NDArray[np.int32]:
        return self.ints("sys_flag")

    @property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        return self.ints("queue_id")

    @property
    def queue_offsets(self) -> Ints:
        return self.longs("queue_offset")

    @property
    def physical_offsets(self) -> Ints:
        """The physical offset of each record."""
        return self.longs("physical_offset")

    @property
    def store_timestamps(self) -> Ints:
        """The store time of each record, in ms since the epoch."""
        return self.longs("store_timestamp")

    def tags(self) -> pa.Array:
        """The tag of each record, as strings; null for a record without a tag."""
        return self.property_values(READ_COLUMNS[TAGS].source)

    def body(self, i: int) -> bytes:
        """One body, decompressed. Raises CompressionError."""
        return decompress(self.stored_body(i), int(self._sys_flags[i]), self._max_body_size)

    def bodies(self, numbers: Ints, max_bytes: int) -> tuple[pa.Array, dict[int, str]]:
        """Returns the decompressed bodies of the records with the indexes `numbers`, and the problems.

        Stops after the body with which the total size reaches `max_bytes`. A body that can't be decompressed is null.
        The problems are {index in the array: reason}.
        """
        found: list[bytes | None] = []
        problems: dict[int, str] = {}
        size = 0
        for index, i in enumerate(numbers.tolist()):
            try:
                body = self.body(i)
            except CompressionError as e:
                problems[index] = str(e)
                found.append(None)
            else:
                found.append(body)
                size += len(body)
            if size >= max_bytes:
                break
        return pa.array(found, pa.binary()), problems

    def columns(self, wanted: Sequence[str], topic: str | None, broker_name: str | None) -> list[pa.Array]:
        """Returns one array for each name in `wanted`.

        A name is a column of a read (except `body` and `bodyError`), or the name of a property. `topic` and
        `broker_name` are those of the pull. If `topic` is None, the column has the topic of each record.
        """
        return [self._column(name, topic, broker_name) for name in wanted]

    def _column(self, name: str, topic: str | None, broker_name: str | None) -> pa.Array:
        match READ_COLUMNS.get(name):
            case None:
                return self.property_values(name)
            case Column(origin=Origin.TOPIC):
                return self.topics() if topic is None else _repeated(topic, len(self))
            case Column(origin=Origin.BROKER):
                return _repeated(broker_name, len(self))
            case Column(origin=Origin.FIELD, source=field):
                return _numbers(name, self.ints(field) if ARROW_TYPES[name] == pa.int32() else self.longs(field))
            case Column(origin=Origin.TIME, source=field):
                return _numbers(name, _microseconds(self.longs(field)))
            case Column(origin=Origin.PROPERTY, source=property_):
                return self.property_values(property_)
            case Column(origin=Origin.MESSAGE_ID, source=property_):
                return self.message_ids(property_)
            case Column(origin=Origin.PROPERTY_MAP):
                return self.property_map()
            case column:
                raise AssertionError(f"{column} is a column of `record_batches`")

    def message_ids(self, unique_key: str) -> pa.Array:
        """The property `unique_key` of each record; without it, an id from the broker's address and the offset."""
        unique_keys = self.property_values(unique_key)
        if not unique_keys.null_count:
            return unique_keys
        positions = self.physical_offsets
        return pa.array(
            [
                key if key is not None else encode_offset_message_id(self.store_host(i), int(positions[i]))
                for i, key in enumerate(unique_keys.to_pylist())
            ],
            pa.string(),
        )


def _numbers(name: str, values: npt.NDArray[np.int32] | Ints) -> pa.Array:
    """Returns a column with these values, without a copy."""
    return pa.Array.from_buffers(ARROW_TYPES[name], len(values), [None, pa.py_buffer(values)])


def _microseconds(times_ms: Ints) -> Ints:
    # The clock of a client can have any value. Beyond these bounds, the multiplication would overflow. The check takes
    # a tenth of the time of `clip`.
    if len(times_ms) and not -_LAST_MS <= np.min(times_ms) <= np.max(times_ms) <= _LAST_MS:
        times_ms = times_ms.clip(-_LAST_MS, _LAST_MS)
    return times_ms * 1000


def _repeated(text: str | None, count: int) -> pa.Array:
    """Returns a column with the same text in each row."""
    return _many(text, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=4)
def _many(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
