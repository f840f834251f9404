"""The record of a message that is committed, made of the bytes of its half message's record: a third of what it takes
to decode the one and encode the other.

Only for records of version 1 with IPv4 hosts, whose properties end as those of the same batch do.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from gantrymq.protocol.record import BODY_AT_V4, FIXED_SIZE_V4, MAGIC_V1, MAX_TOPIC_LENGTH_V1, offset_of, unpacker
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK

_unpack = unpacker("size", "magic", "body_crc", "queue_offset", "physical_offset", "sys_flag", "body_length")
_HOST_V6 = BORN_HOST_V6 | STORE_HOST_V6
_pack_i32_into = Struct(">i").pack_into
_pack_i64_into = Struct(">q").pack_into
_pack_i16 = Struct(">h").pack
_SIZE_AT = offset_of("size")
_QUEUE_ID_AT = offset_of("queue_id")
_SYS_FLAG_AT = offset_of("sys_flag")
_PREPARED_AT = offset_of("prepared_transaction_offset")


class CommittedCopies:
    """Makes the records of messages for a queue, of half messages in the queue `half_topic`.

    Their properties end with `ending`, of which the last `waiting` bytes don't go along.
    """

    def __init__(self, half_topic: bytes, topic: bytes, queue_id: int, ending: bytes, waiting: int) -> None:
        self._half_topic = half_topic
        self._topic = bytes([len(topic)]) + topic if len(topic) <= MAX_TOPIC_LENGTH_V1 else b""
        self._queue_id = queue_id
        self._ending = ending
        self._waiting = waiting

    def make(self, half: bytes, half_offset: int, physical_offset: int) -> bytes | None:
        """The record, but for its places and its store time; None for bytes that are no such half message's."""
        if len(half) < FIXED_SIZE_V4 or not half.endswith(self._ending) or not self._topic:
            return None
        size, magic, body_crc, queue_offset, at, sys_flag, body_length = _unpack(half)
        body_end = BODY_AT_V4 + body_length
        if (
            (size, magic, queue_offset, at) != (len(half), MAGIC_V1, half_offset, physical_offset)
            or sys_flag & _HOST_V6
            or not BODY_AT_V4 <= body_end < size
        ):
            return None
        topic_end = body_end + 1 + half[body_end]
        end = size - self._waiting
        if (
            half[body_end + 1 : topic_end] != self._half_topic
            or topic_end + 2 > size - len(self._ending)
            or crc32(half[BODY_AT_V4:body_end]) & 0x7FFFFFFF != body_crc
        ):
            return None
        made = bytearray().join(
            (half[:body_end], self._topic, _pack_i16(end - topic_end - 2), half[topic_end + 2 : end])
        )
        _pack_i32_into(made, _SIZE_AT, len(made))
        _pack_i32_into(made, _QUEUE_ID_AT, self._queue_id)
        _pack_i32_into(made, _SYS_FLAG_AT, sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT)
        _pack_i64_into(made, _PREPARED_AT, physical_offset)
        return bytes(made)
