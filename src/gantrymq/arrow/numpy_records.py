"""`NumpyRecords` implements ArrowRecords with numpy, for installations without native code.

A loop in Python finds the start of each record. Then numpy reads the fixed fields of all records at once, and checks
the lengths within each record. Arrow copies the bodies. A column is decoded when it is requested. `protocol/record.py`
describes the layout.

Times on one core, per record of 296 bytes with a body of 128 bytes and three properties:

| part | us |
|---|---|
| layout and numbers | 0.32 |
| CRC of the body | 0.28 |
| body | 0.05 |
| the first of tags, keys and msgId | 0.3 |
| map of properties | 0.4 |
| all columns and the CRC | 1.2 |
| for comparison: `protocol.message.decode_messages` | 3.5 |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantrymq.arrow.arrow_properties import Properties, gather_binary, to_string
from gantrymq.arrow.arrow_records import ArrowRecords, Ints
from gantrymq.errors import RecordError
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
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6

#: Maps the `struct` codes in `FIELDS` to numpy's type codes.
_CODES = {"i": ">i4", "I": ">u4", "q": ">i8"}
_HEAD = np.dtype([(field, _CODES[FIELDS[field]]) for field in HEAD])
_AFTER_HOSTS = np.dtype([(field, _CODES[FIELDS[field]]) for field in AFTER_HOSTS])
_I64 = np.dtype(">i8")
_I16 = np.dtype(">i2")
_U8 = np.dtype("u1")
#: The position if both hosts are IPv4. An IPv6 host shifts the fields after it.
_STORE_TIMESTAMP_AT = offset_of("store_timestamp")
_V6_LONGER = HOST_SIZE_V6 - HOST_SIZE_V4
_unpack_size = unpacker("size")


class NumpyRecords(ArrowRecords):
    """ArrowRecords with numpy."""

    def _read(self, wanted: Sequence[str], *, check_crc: bool, part: bool) -> None:
        if part:
            self.length = self._whole_length()
            self._buffer = self._buffer[: self.length]
        self._starts = _record_starts(self._buffer)
        try:
            self._read_layout()
        except IndexError:
            self._refuse(range(len(self._starts)))

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> Ints:
        return self._starts

    def ints(self, field: str) -> npt.NDArray[np.int32]:
        column = self._ints.get(field)
        return (self._head[field] if column is None else column).astype(np.int32)

    def longs(self, field: str) -> Ints:
        column = self._longs.get(field)
        return (self._head[field] if column is None else column).astype(np.int64)

    def topics(self) -> pa.Array:
        return to_string(gather_binary(self._buffer, self._topic_start, self._properties_start - 2))

    def numbered_topics(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        found = self.topics().dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy()

    def property_values(self, name: str) -> pa.Array:
        return to_string(self._properties.find(name))

    def property_map(self) -> pa.Array:
        return self._properties.as_map()

    def stored_bodies(self, numbers: Ints | None = None) -> pa.Array:
        some = slice(None) if numbers is None else numbers
        return gather_binary(self._buffer, self._body_start[some], self._body_end[some])

    def stored_body(self, i: int) -> bytes:
        return bytes(self._buffer[self._body_start[i] : self._body_end[i]])

    def store_host(self, i: int) -> bytes:
        return bytes(self._buffer[self._store_host_start[i] : self._store_host_end[i]])

    def has_wrong_crc(self) -> npt.NDArray[np.bool_]:
        view = memoryview(self._buffer)
        found = [
            crc32(view[start:end])
            for start, end in zip(self._body_start.tolist(), self._body_end.tolist(), strict=True)
        ]
        wrong: npt.NDArray[np.bool_] = (np.array(found, np.uint32) & 0x7FFFFFFF) != self._head["body_crc"]
        return wrong

    def _whole_length(self) -> int:
        at = 0
        while not self._ends_at(at):
            (size,) = _unpack_size(self._buffer, at)
            if size < FIXED_SIZE_V4:
                # Not a record: `_record_starts` raises the error.
                return len(self._buffer)
            at += size
        return at

    def _read_layout(self) -> None:
        buffer, starts = self._buffer, self._starts
        head = self._head = _gather(buffer, starts, _HEAD)
        magic, sys_flag = head["magic"], head["sys_flag"]
        version_2 = magic == MAGIC_V2
        self._refuse_where(~version_2 & (magic != MAGIC_V1))
        born_end = starts + _STORE_TIMESTAMP_AT + _V6_LONGER * ((sys_flag & BORN_HOST_V6) != 0)
        self._longs = {"store_timestamp": _gather(buffer, born_end, _I64)}
        self._store_host_start = born_end + _I64.itemsize
        self._store_host_end = self._store_host_start + HOST_SIZE_V4 + _V6_LONGER * ((sys_flag & STORE_HOST_V6) != 0)
        tail = _gather(buffer, self._store_host_end, _AFTER_HOSTS)
        self._ints = {"reconsume_times": tail["reconsume_times"]}
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
            decode_record(bytes(self._buffer), int(self._starts[i]))  # Raises an error with the reason.
        raise RecordError(f"lengths inside the records of {len(self._buffer)} bytes don't add up")

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self._buffer, self._properties_start, self._properties_end)


def _record_starts(buffer: bytes | memoryview) -> Ints:
    starts: list[int] = []
    add = starts.append
    pos, end = 0, len(buffer)
    last = end - FIXED_SIZE_V4
    while pos <= last:
        add(pos)
        (size,) = _unpack_size(buffer, pos)
        if size < FIXED_SIZE_V4:
            decode_record(bytes(buffer), pos)  # raises
        pos += size
    if pos != end:
        decode_record(bytes(buffer), starts[-1] if pos > end else pos)  # Raises, because the last record is cut off.
    return np.array(starts, np.int64)


def _gather(buffer: bytes | memoryview, positions: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the value at each position. Raises IndexError for a position beyond the end."""
    places = max(0, len(buffer) - dtype.itemsize + 1)
    return np.ndarray((places,), dtype, buffer, strides=(1,))[positions]
