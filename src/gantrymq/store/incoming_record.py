"""Checks the length fields of a record that arrives in pieces."""

from __future__ import annotations

from struct import Struct

from gantrymq.errors import RecordError
from gantrymq.protocol.record import (
    BLANK_SIZE,
    BODY_AT_V4,
    FIXED_SIZE_V4,
    HOST_SIZE_V4,
    HOST_SIZE_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    unpacker,
)
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6

_unpack_head = unpacker("size", "magic")
_unpack_place = unpacker("physical_offset", "sys_flag")
_unpack_u8 = Struct(">B").unpack_from
_unpack_i32 = Struct(">i").unpack_from
_unpack_i16 = Struct(">h").unpack_from
_HOST_V6_MORE = HOST_SIZE_V6 - HOST_SIZE_V4


def size_of_next(buffer: bytes, pos: int, physical_offset: int, room: int) -> int:
    """Returns the size of the record or blank at `pos`.

    If the record is incomplete, returns the number of bytes needed for the next check, which is more than the buffer
    has. `room` is the number of bytes to the end of the file. Each length field is checked as soon as it has arrived. A
    damaged length could otherwise block all later data. Raises RecordError if the data is not a valid record.
    """
    available = len(buffer) - pos
    if available < BLANK_SIZE:
        return BLANK_SIZE
    size: int
    size, magic = _unpack_head(buffer, pos)
    if magic == MAGIC_BLANK:
        if size != room:
            raise RecordError(
                f"a blank of {size} bytes where the file ends in {room}: both need the same mappedFileSizeCommitLog"
            )
        return size
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"magic {magic:#010x} is no record's")
    if not FIXED_SIZE_V4 <= size <= room - BLANK_SIZE:
        raise RecordError(f"it says it has {size} bytes, where the file ends in {room}")
    if available < FIXED_SIZE_V4:
        return FIXED_SIZE_V4
    place, sys_flag = _unpack_place(buffer, pos)
    if place != physical_offset:
        raise RecordError(f"it says that it is at {place}")
    body_at = BODY_AT_V4 + _HOST_V6_MORE * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    unpack_topic_length, topic_length_size = (_unpack_u8, 1) if magic == MAGIC_V1 else (_unpack_i16, 2)
    # For each length field: its position, its decoder, and the start of the data that it describes.
    end = 0
    for at, unpack, begin in (
        (body_at - 4, _unpack_i32, body_at),
        (0, unpack_topic_length, topic_length_size),
        (0, _unpack_i16, 2),
    ):
        if available < end + begin:
            return end + begin
        (length,) = unpack(buffer, pos + end + at)
        end += begin + length
        if length < 0 or end > size:
            raise RecordError(f"a length of {length} doesn't fit into its {size} bytes")
    if end != size:
        raise RecordError(f"it says it has {size} bytes, and its content has {end}")
    return size
