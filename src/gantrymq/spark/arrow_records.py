"""The records of pulled buffers as Arrow columns, all records at once, without a Python object for each.

Two do it: `native_records.py` in native code, where that is there, and `numpy_records.py`. What is said of records
here holds for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantrymq.errors import CompressionError, RecordError
from gantrymq.protocol import properties as names
from gantrymq.protocol.compression import decompress
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.record import FIXED_SIZE_V4, MAGIC_BLANK, unpacker
from gantrymq.protocol.sys_flag import COMPRESSED

Ints = npt.NDArray[np.int64]

TIMESTAMP = pa.timestamp("us", "UTC")
#: The last ms, and the first one, that has us in 64 bits.
_LAST_MS = (2**63 - 1) // 1000
#: Every column that a reader offers, in the order of the default schema.
ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "msgId": pa.string(),
    "reconsumeTimes": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "bodyError": pa.string(),
}
#: These two `record_batches` makes.
BODY, BODY_ERROR = "body", "bodyError"
#: Columns that are a property of another name.
PROPERTIES = {"keys": names.KEYS, "tags": names.TAGS, "msgId": names.UNIQUE_KEY}
_unpack_head = unpacker("size", "magic")


class ArrowRecords(ABC):
    """The records of `buffer`, which holds any number of them back to back, as `pull` answers do.

    `wanted` are columns that will be asked for: they may be made in the same pass. Where the buffer is but a `part` of
    a log's file it may end within a record, or with the file: `length` says where the last whole record does.

    What is in the buffer stays there while this object is used; what it has given has a copy.

    Raises RecordError when a record is cut off, is no record, or (with `check_crc`) its body has another CRC32.
    """

    def __init__(
        self, buffer: bytes | memoryview, wanted: Sequence[str] = (), *, check_crc: bool = True, part: bool = False
    ) -> None:
        self._buffer = buffer
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
        """Finds where everything stands; with `check_crc` that will be asked for. Raises RecordError."""

    def _ends_at(self, at: int) -> bool:
        """Whether there begins no whole record because the file ends, or this part of it does."""
        if len(self._buffer) - at < FIXED_SIZE_V4:
            return True
        size, magic = _unpack_head(self._buffer, at)
        return magic == MAGIC_BLANK or (size >= FIXED_SIZE_V4 and at + size > len(self._buffer))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ints(self, field: str) -> npt.NDArray[np.int32]:
        """A field of `protocol.record.FIELDS` of 32 bits."""

    @abstractmethod
    def longs(self, field: str) -> Ints:
        """One of 64 bits."""

    @property
    @abstractmethod
    def starts(self) -> Ints:
        """Where each record begins in the buffer."""

    @abstractmethod
    def topics(self) -> pa.Array:
        """Strings, as the records themselves say."""

    @abstractmethod
    def numbered_topics(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """The different topics, and for each record which of them is its own."""

    @abstractmethod
    def property_values(self, name: str) -> pa.Array:
        """One property's values: strings, null where a record has none."""

    @abstractmethod
    def property_map(self) -> pa.Array:
        """All of them, as a map of strings for each record."""

    @abstractmethod
    def stored_bodies(self, numbers: Ints | None = None) -> pa.Array:
        """The bodies of these records, ascending, or of all, as they are stored."""

    @abstractmethod
    def stored_body(self, i: int) -> bytes:
        """One body as it is stored."""

    @abstractmethod
    def store_host(self, i: int) -> bytes:
        """One record's host field."""

    @abstractmethod
    def has_wrong_crc(self) -> npt.NDArray[np.bool_]:
        """For each record whether its body has another CRC32 than it says."""

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
        """What each record says."""
        return self.longs("physical_offset")

    @property
    def store_timestamps(self) -> Ints:
        """In ms."""
        return self.longs("store_timestamp")

    def tags(self) -> pa.Array:
        """Strings, null where a record has none."""
        return self.property_values(PROPERTIES["tags"])

    def body(self, i: int) -> bytes:
        """One body, inflated. Raises CompressionError."""
        return decompress(self.stored_body(i), int(self._sys_flags[i]))

    def bodies(self, numbers: Ints, max_bytes: int) -> tuple[pa.Array, dict[int, str]]:
        """The bodies of the first so many of the records `numbers`, inflated, until they have `max_bytes`.

        Null where one doesn't inflate; why is said by its place in the array.
        """
        found: list[bytes | None] = []
        problems: dict[int, str] = {}
        size = 0
        for place, i in enumerate(numbers.tolist()):
            try:
                body = self.body(i)
            except CompressionError as e:
                problems[place] = str(e)
                found.append(None)
            else:
                found.append(body)
                size += len(body)
            if size >= max_bytes:
                break
        return pa.array(found, pa.binary()), problems

    def columns(self, wanted: Sequence[str], topic: str | None, broker_name: str | None) -> list[pa.Array]:
        """One array for each name of `wanted`: those of `ARROW_TYPES` but the body, and names of properties.

        Topic and broker are where the buffer is from; without a topic the records' own.
        """
        arrays = []
        for name in wanted:
            if name == "topic":
                arrays.append(self.topics() if topic is None else _repeated(topic, len(self)))
            elif name == "brokerName":
                arrays.append(_repeated(broker_name, len(self)))
            elif name in _COLUMNS:
                arrays.append(_COLUMNS[name](self))
            else:
                arrays.append(self.property_values(name))
        return arrays

    def msg_ids(self) -> pa.Array:
        """The producers' unique keys; where a record has none, where it stands."""
        unique_keys = self.property_values(PROPERTIES["msgId"])
        if not unique_keys.null_count:
            return unique_keys
        places = self.physical_offsets
        return pa.array(
            [
                key if key is not None else encode_offset_message_id(self.store_host(i), int(places[i]))
                for i, key in enumerate(unique_keys.to_pylist())
            ],
            pa.string(),
        )


_COLUMNS: dict[str, Callable[[ArrowRecords], pa.Array]] = {
    "queueId": lambda r: pa.array(r.queue_ids),
    "queueOffset": lambda r: pa.array(r.queue_offsets),
    "keys": lambda r: r.property_values(PROPERTIES["keys"]),
    "tags": ArrowRecords.tags,
    "bornTimestamp": lambda r: _timestamps(r.longs("born_timestamp")),
    "storeTimestamp": lambda r: _timestamps(r.store_timestamps),
    "msgId": ArrowRecords.msg_ids,
    "reconsumeTimes": lambda r: pa.array(r.ints("reconsume_times")),
    "properties": lambda r: r.property_map(),
}


def _repeated(text: str | None, count: int) -> pa.Array:
    """A column that has the same text in each row."""
    return _many(text, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=4)
def _many(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def single_properties(columns: Sequence[str]) -> set[str]:
    """The properties that these columns are made of, one each."""
    others = _COLUMNS.keys() | ARROW_TYPES.keys()
    return {PROPERTIES.get(name, name) for name in columns if name in PROPERTIES or name not in others}


def _timestamps(milliseconds: Ints) -> pa.Array:
    # A client's clock may say anything; beyond what Spark has the product would be any other time.
    return pa.array(milliseconds.clip(-_LAST_MS, _LAST_MS) * 1000).view(TIMESTAMP)
