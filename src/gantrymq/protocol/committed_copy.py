"""Creates the records of committed messages directly from the bytes of their half messages' records.

This takes a fifth of the time of decoding and encoding. It supports only records of version 1 with IPv4 hosts. The
properties of all half messages must have the same ending.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from zlib import crc32

from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH
from gantrymq.protocol.record import BODY_AT_V4, FIELDS, FIXED_SIZE_V4, MAGIC_V1, MAX_TOPIC_LENGTH_V1
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK

_HOST_V6 = BORN_HOST_V6 | STORE_HOST_V6
_NOT_HALF = ~TRANSACTION_MASK
_FIXED = Struct(">" + "".join(FIELDS.values()))
_unpack = _FIXED.unpack_from
_pack = _FIXED.pack
_pack_i16 = Struct(">h").pack


class CommittedCopies:
    """Creates records of committed messages for one queue, from half messages in the topic `half_topic`.

    The properties of each half message must end with `ending`. Its last `waiting` bytes are not copied.
    """

    def __init__(self, half_topic: bytes, topic: bytes, queue_id: int, ending: bytes, waiting: int) -> None:
        self._half_topic = bytes([len(half_topic)]) + half_topic
        self._topic = bytes([len(topic)]) + topic if len(topic) <= MAX_TOPIC_LENGTH_V1 else b""
        self._queue_id = queue_id
        self._ending = ending
        self._waiting = waiting

    def make(self, halves: bytes, sizes: Iterable[int], half_offset: int, physical_offset: int) -> list[bytes]:
        """Returns the records of consecutive half messages. The caller must set their final offsets and times.

        `halves` are the bytes of the half messages. The first one has the given offsets. Stops at the first record that
        does not have the expected form.
        """
        made = list[bytes]()
        if not self._topic:
            return made
        half_topic, topic, queue_id, ending, waiting = (
            self._half_topic,
            self._topic,
            self._queue_id,
            self._ending,
            self._waiting,
        )
        # Sizes of the parts between body and properties, without the properties' length: in the new and in the old
        # record.
        least, topic_size = FIXED_SIZE_V4 - 3 + len(half_topic) + 2 + len(ending), len(half_topic) + 2
        grows_by = len(topic) - len(half_topic) - waiting
        at, length = 0, len(halves)
        for size in sizes:
            end = at + size
            if size < least or end > length or not halves.endswith(ending, at, end):
                break
            (
                own_size,
                magic,
                body_crc,
                _,
                flag,
                queue_offset,
                place,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                _,
                body_length,
            ) = _unpack(halves, at)
            body_at = at + BODY_AT_V4
            body_end = body_at + body_length
            if (
                own_size != size
                or magic != MAGIC_V1
                or queue_offset != half_offset
                or place != physical_offset
                or sys_flag & _HOST_V6
                or not 0 <= body_length <= size - least
                or not halves.startswith(half_topic, body_end)
            ):
                break
            body = halves[body_at:body_end]
            properties = halves[body_end + topic_size : end - waiting]
            if crc32(body) & 0x7FFFFFFF != body_crc or len(properties) > MAX_PROPERTIES_LENGTH:
                break
            made.append(
                b"".join(
                    (
                        _pack(
                            size + grows_by,
                            magic,
                            body_crc,
                            queue_id,
                            flag,
                            queue_offset,
                            place,
                            sys_flag & _NOT_HALF | TRANSACTION_COMMIT,
                            born_timestamp,
                            born_host,
                            store_timestamp,
                            store_host,
                            reconsume_times,
                            place,
                            body_length,
                        ),
                        body,
                        topic,
                        _pack_i16(len(properties)),
                        properties,
                    )
                )
            )
            at = end
            half_offset += 1
            physical_offset += size
        return made
