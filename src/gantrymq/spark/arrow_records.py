"""The records of pulled buffers as Arrow columns, all records at once.

One small loop collects where the records start; numpy then gathers the fixed fields of all of them and checks that the
lengths inside each add up, and Arrow copies the bodies. A column costs only when it is asked for. On one core, for
records of 296 bytes with 128 of body and three properties: layout and numbers 0.32 us a record, the CRC of the body
0.28, the body 0.05, the first of tags, keys and msgId 0.3, the map of properties 0.4; all columns and the CRC 1.2 us.
`protocol.message.decode_messages` takes 3.5 us for the same.
The layout is `protocol/record.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantrymq.errors import RecordError
from gantrymq.protocol import properties as names
from gantrymq.protocol.compression import decompress
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.record import (
    AFTER_HOSTS,
    FIELDS,
    FIXED_SIZE_V4,
    HEAD,
    HOST_SIZE_V4,
    HOST_SIZE_V6,
    MAGIC_V1,
    MAGIC_V2,
    decode_record,
    offset_of,
    unpacker,
)
from gantrymq.protocol.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from gantrymq.spark.arrow_properties import Properties, gather_binary, to_string

Ints = npt.NDArray[np.int64]

#: numpy's codes for those of `FIELDS`.
_CODES = {"i": ">i4", "I": ">u4", "q": ">i8"}
_HEAD = np.dtype([(field, _CODES[FIELDS[field]]) for field in HEAD])
_AFTER_HOSTS = np.dtype([(field, _CODES[FIELDS[field]]) for field in AFTER_HOSTS])
_I64 = np.dtype(">i8")
_I16 = np.dtype(">i2")
_U8 = np.dtype("u1")
#: Where hosts are IPv4; one of IPv6 moves what is behind it.
_STORE_TIMESTAMP_AT = offset_of("store_timestamp")
_V6_LONGER = HOST_SIZE_V6 - HOST_SIZE_V4
_unpack_size = unpacker("size")

TIMESTAMP = pa.timestamp("us", "UTC")
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


class PulledRecords:
    """The records of `buffer`, which holds any number of them back to back, as `pull` answers do.

    Raises RecordError when a record is cut off, is no record, or (with `check_crc`) its body has another CRC32.
    """

    def __init__(self, buffer: bytes, *, check_crc: bool = True) -> None:
        self._buffer = buffer
        self._starts = _record_starts(buffer)
        try:
            self._read_layout()
        except IndexError:
            self._refuse(range(len(self._starts)))
        if check_crc and (wrong := self.has_wrong_crc()).any():
            (first,) = np.flatnonzero(wrong)[:1]
            raise RecordError(
                f"offset {self.queue_offsets[first]} of queue {self.queue_ids[first]}: "
                "the body has another CRC32 than its record says"
            )

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def has_compressed(self) -> bool:
        """Whether any body is compressed."""
        return bool((self._head["sys_flag"] & COMPRESSED).any())

    @property
    def queue_ids(self) -> Ints:
        return self._head["queue_id"].astype(np.int64)

    @property
    def queue_offsets(self) -> Ints:
        return self._head["queue_offset"].astype(np.int64)

    @property
    def physical_offsets(self) -> Ints:
        """What each record says."""
        return self._head["physical_offset"].astype(np.int64)

    @property
    def starts(self) -> Ints:
        """Where each record begins in the buffer."""
        return self._starts

    @property
    def store_timestamps(self) -> Ints:
        """In ms."""
        return self._store_timestamp.astype(np.int64)

    def columns(self, wanted: Sequence[str], topic: str | None, broker_name: str | None) -> list[pa.Array]:
        """One array for each name of `wanted`: those of `ARROW_TYPES` but the body, and names of properties.

        Topic and broker are where the buffer is from; without a topic the records' own.
        """
        arrays = []
        for name in wanted:
            if name == "topic":
                arrays.append(self.topics() if topic is None else pa.repeat(pa.scalar(topic), len(self)))
            elif name == "brokerName":
                arrays.append(pa.repeat(pa.scalar(broker_name, pa.string()), len(self)))
            elif name in _COLUMNS:
                arrays.append(_COLUMNS[name](self))
            else:
                arrays.append(self.property(name))
        return arrays

    def topics(self) -> pa.Array:
        """Strings, as the records themselves say."""
        return to_string(gather_binary(self._buffer, self._topic_start, self._properties_start - 2))

    def tags(self) -> pa.Array:
        """Strings, null where a record has none."""
        return self.property(names.TAGS)

    def property(self, name: str) -> pa.Array:
        """One property's values: strings, null where a record has none."""
        return to_string(self._properties.find(name))

    def stored_bodies(self) -> pa.Array:
        """All bodies as they are stored."""
        return gather_binary(self._buffer, self._body_start, self._body_end)

    def body(self, i: int) -> bytes:
        """One body, inflated. Raises CompressionError."""
        return decompress(self._buffer[self._body_start[i] : self._body_end[i]], int(self._head["sys_flag"][i]))

    def has_wrong_crc(self) -> npt.NDArray[np.bool_]:
        """For each record whether its body has another CRC32 than it says."""
        view = memoryview(self._buffer)
        found = [
            crc32(view[start:end])
            for start, end in zip(self._body_start.tolist(), self._body_end.tolist(), strict=True)
        ]
        wrong: npt.NDArray[np.bool_] = (np.array(found, np.uint32) & 0x7FFFFFFF) != self._head["body_crc"]
        return wrong

    # -- layout -------------------------------------------------------------------------------------------------

    def _read_layout(self) -> None:
        buffer, starts = self._buffer, self._starts
        head = self._head = _gather(buffer, starts, _HEAD)
        magic, sys_flag = head["magic"], head["sys_flag"]
        version_2 = magic == MAGIC_V2
        self._refuse_where(~version_2 & (magic != MAGIC_V1))
        born_end = starts + _STORE_TIMESTAMP_AT + _V6_LONGER * ((sys_flag & BORN_HOST_V6) != 0)
        self._store_timestamp = _gather(buffer, born_end, _I64)
        self._store_host_start = born_end + _I64.itemsize
        self._store_host_end = self._store_host_start + HOST_SIZE_V4 + _V6_LONGER * ((sys_flag & STORE_HOST_V6) != 0)
        tail = _gather(buffer, self._store_host_end, _AFTER_HOSTS)
        self._reconsume_times = tail["reconsume_times"]
        record_end = starts + head["size"]
        self._body_start = self._store_host_end + _AFTER_HOSTS.itemsize
        self._body_end = self._body_start + tail["body_length"]
        self._refuse_where((tail["body_length"] < 0) | (self._body_end > record_end - 3))
        if version_2.any():
            topic_length = np.where(
                version_2, _gather(buffer, self._body_end, _I16), _gather(buffer, self._body_end, _U8)
            ).astype(np.int64)
            self._topic_start = self._body_end + 1 + version_2
        else:
            topic_length = _gather(buffer, self._body_end, _U8).astype(np.int64)
            self._topic_start = self._body_end + 1
        topic_end = self._topic_start + topic_length
        self._refuse_where((topic_length < 0) | (topic_end > record_end - 2))
        self._properties_start = topic_end + 2
        self._properties_end = self._properties_start + _gather(buffer, topic_end, _I16)
        self._refuse_where((self._properties_end < self._properties_start) | (self._properties_end != record_end))

    def _refuse_where(self, bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            self._refuse(np.flatnonzero(bad).tolist())

    def _refuse(self, records: Sequence[int]) -> None:
        for i in records:
            decode_record(self._buffer, int(self._starts[i]))  # raises, and says what is wrong
        raise RecordError(f"lengths inside the records of {len(self._buffer)} bytes don't add up")

    # -- columns ------------------------------------------------------------------------------------------------

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self._buffer, self._properties_start, self._properties_end)

    def _msg_ids(self) -> pa.Array:
        unique_keys = self.property(names.UNIQUE_KEY)
        if not unique_keys.null_count:
            return unique_keys
        return pa.array(
            [key if key is not None else self._offset_msg_id(i) for i, key in enumerate(unique_keys.to_pylist())],
            pa.string(),
        )

    def _offset_msg_id(self, i: int) -> str:
        host = self._buffer[self._store_host_start[i] : self._store_host_end[i]]
        return encode_offset_message_id(host, int(self._head["physical_offset"][i]))


_COLUMNS: dict[str, Callable[[PulledRecords], pa.Array]] = {
    "queueId": lambda r: pa.array(r._head["queue_id"].astype(np.int32)),
    "queueOffset": lambda r: pa.array(r.queue_offsets),
    "keys": lambda r: r.property(names.KEYS),
    "tags": PulledRecords.tags,
    "bornTimestamp": lambda r: _timestamps(r._head["born_timestamp"].astype(np.int64)),
    "storeTimestamp": lambda r: _timestamps(r.store_timestamps),
    "msgId": PulledRecords._msg_ids,
    "reconsumeTimes": lambda r: pa.array(r._reconsume_times.astype(np.int32)),
    "properties": lambda r: r._properties.as_map(),
}


def _record_starts(buffer: bytes) -> Ints:
    starts: list[int] = []
    add = starts.append
    pos, end = 0, len(buffer)
    last = end - FIXED_SIZE_V4
    while pos <= last:
        add(pos)
        (size,) = _unpack_size(buffer, pos)
        if size < FIXED_SIZE_V4:
            decode_record(buffer, pos)  # raises
        pos += size
    if pos != end:
        decode_record(buffer, starts[-1] if pos > end else pos)  # raises: the last record is cut off
    return np.array(starts, np.int64)


def _gather(buffer: bytes, positions: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The value that stands at each position; raises IndexError for a position beyond the end."""
    places = max(0, len(buffer) - dtype.itemsize + 1)
    return np.ndarray((places,), dtype, buffer, strides=(1,))[positions]


def _timestamps(milliseconds: Ints) -> pa.Array:
    return pa.array(milliseconds * 1000).view(TIMESTAMP)
