"""Encodes and decodes the message record, which has the same form in the commit log and in a pull response.

    int32 size | int32 magic | int32 CRC32 of body & 0x7fffffff | int32 queueId | int32 flag | int64 queueOffset
    | int64 physicalOffset | int32 sysFlag | int64 bornTimestamp | born host | int64 storeTimestamp | store host
    | int32 reconsumeTimes | int64 preparedTransactionOffset | int32 length + body
    | int8 (V2: int16) length + topic | int16 length + properties

A host has 4 (IPv4) or 16 (IPv6) address bytes and an int32 port. Only this module contains the offsets of the fields.
To read some fields of many records, other modules use an `unpacker`, or numpy with `FIELDS`.
Source: store/MessageExtEncoder, common/message/MessageDecoder, MessageVersion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import RecordError
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from gantrymq.system import network
from gantrymq.system.files import Mapping

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
#: Magic number of the blank at the end of a commit log file (`CommitLog.BLANK_MAGIC_CODE`).
MAGIC_BLANK = 0xCBD43194
#: Longest topic of a record of version 1, in bytes. A longer one needs version 2.
MAX_TOPIC_LENGTH_V1 = 127

#: Fields of the fixed part in order, with their `struct` codes. Offsets up to the born host are the same in all
#: records. Offsets of later fields are only valid for records with IPv4 hosts. `AFTER_HOSTS` are the fields after the
#: hosts.
FIELDS = {
    "size": "i",
    "magic": "I",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "8s",
    "store_timestamp": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
HEAD = tuple(FIELDS)[:9]
AFTER_HOSTS = tuple(FIELDS)[12:]

#: Size of a host field (address and port), in bytes.
HOST_SIZE_V4 = 8
HOST_SIZE_V6 = 20

Buffer = bytes | bytearray | memoryview


def offset_of(field: str) -> int:
    """Returns the offset of a field in a record. After born_host it applies only to records with IPv4 hosts."""
    names = list(FIELDS)
    return _struct(names[: names.index(field)]).size


def unpacker(*fields: str) -> Callable[..., tuple[int, ...]]:
    """Returns a function that reads these fields of the record at a position in a buffer, in the record's order.

    The function makes one call of a Struct and reads nothing after the last field.
    """
    code, at = ">", 0
    for field in fields:
        code += f"{offset_of(field) - at}x{FIELDS[field]}"
        at = offset_of(field) + Struct(FIELDS[field]).size
    return Struct(code).unpack_from


def _struct(fields: Iterable[str]) -> Struct:
    return Struct(">" + "".join(FIELDS[field] for field in fields))


_HEAD = _struct(HEAD)
_HEAD_SIZE = _HEAD.size
_FIXED_V4 = _struct(FIELDS)
_AFTER_HOSTS = _struct(AFTER_HOSTS)
_BLANK = Struct(">iI")
_I64 = Struct(">q")
_I32 = Struct(">i")
_I16 = Struct(">h")
#: Size of an IPv4 record of version 1 without body, topic and properties, in bytes.
FIXED_SIZE_V4 = _FIXED_V4.size + 1 + 2
#: Offset of the body in an IPv4 record.
BODY_AT_V4 = _FIXED_V4.size
#: Size of the blank's head: its size and MAGIC_BLANK, at the same offsets as size and magic of a record.
BLANK_SIZE = _BLANK.size
_HOST_V6 = BORN_HOST_V6 | STORE_HOST_V6
_STORE_TIMESTAMP_END_V6 = _HEAD_SIZE + HOST_SIZE_V6 + _I64.size
_pack_fixed_v4 = _FIXED_V4.pack
_unpack_fixed_v4 = _FIXED_V4.unpack_from
_unpack_i16 = _I16.unpack_from
_unpack_to_body = unpacker("magic", "sys_flag", "body_length")
_unpack_magic_and_flags = unpacker("magic", "sys_flag")
_unpack_late_v4: Callable[[bytes], LateFields] = unpacker(
    "flag",
    "physical_offset",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
)  # type: ignore[assignment]
#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__
_pack_i16 = _I16.pack
_TOPIC_LENGTHS = [bytes([n]) for n in range(MAX_TOPIC_LENGTH_V1 + 1)]


class Record(NamedTuple):
    """The fields of a record as stored: the body possibly compressed, topic and properties as bytes."""

    size: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes
    topic: bytes
    properties: bytes


def encode_record(
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """Returns the record's bytes. Hosts come from `encode_host`, and sys_flag must have the matching _V6 bits.

    Version 2 is used only for long topics, as with Java's autoMessageVersionOnTopicLen. Callers must check all numbers
    and lengths before. A value that does not fit raises struct.error (topic and properties have at most 32,767 bytes).
    """
    topic_length = len(topic)
    if topic_length <= MAX_TOPIC_LENGTH_V1 and not sys_flag & _HOST_V6:
        return b"".join(
            (
                _pack_fixed_v4(
                    FIXED_SIZE_V4 + len(body) + topic_length + len(properties),
                    MAGIC_V1,
                    crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    len(body),
                ),
                body,
                _TOPIC_LENGTHS[topic_length],
                topic,
                _pack_i16(len(properties)),
                properties,
            )
        )
    version_2 = topic_length > MAX_TOPIC_LENGTH_V1
    tail = b"".join(
        (
            born_host,
            _I64.pack(store_timestamp),
            store_host,
            _AFTER_HOSTS.pack(reconsume_times, prepared_transaction_offset, len(body)),
            body,
            _pack_i16(topic_length) if version_2 else _TOPIC_LENGTHS[topic_length],
            topic,
            _pack_i16(len(properties)),
            properties,
        )
    )
    head = _HEAD.pack(
        _HEAD_SIZE + len(tail),
        MAGIC_V2 if version_2 else MAGIC_V1,
        crc32(body) & 0x7FFFFFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
    )
    return head + tail


def encode_again(record: Record) -> bytes:
    """Encodes a changed record, with a new size and body CRC. Raises as `encode_record` does."""
    return encode_record(
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        record.topic,
        record.properties,
    )


def decode_record(buffer: Buffer, pos: int = 0, *, check_crc: bool = True) -> Record:
    """Returns the record at `pos`. Raises RecordError if it is incomplete or invalid, or if its body's CRC is wrong."""
    available = len(buffer) - pos
    if available >= FIXED_SIZE_V4:
        # Fast path for nearly all records: decodes the fixed part in one step. All other cases and errors follow below.
        (
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared,
            body_length,
        ) = _unpack_fixed_v4(buffer, pos)
        is_plain = magic == MAGIC_V1 and not sys_flag & _HOST_V6
        if is_plain and 0 <= body_length <= size - FIXED_SIZE_V4 and size <= available:
            body_start = pos + BODY_AT_V4
            topic_start = body_start + body_length + 1
            topic_end = topic_start + buffer[topic_start - 1]
            end = pos + size
            if topic_end + 2 <= end and topic_end + 2 + _unpack_i16(buffer, topic_end)[0] == end:
                body = bytes(buffer[body_start : topic_start - 1])
                if check_crc and crc32(body) & 0x7FFFFFFF != body_crc:
                    raise RecordError(f"body of the record at {pos} has another CRC32 than {body_crc}")
                return _new(
                    Record,
                    (
                        size,
                        queue_id,
                        flag,
                        queue_offset,
                        physical_offset,
                        sys_flag,
                        born_timestamp,
                        born_host,
                        store_timestamp,
                        store_host,
                        reconsume_times,
                        prepared,
                        body_crc,
                        body,
                        bytes(buffer[topic_start:topic_end]),
                        bytes(buffer[topic_end + 2 : end]),
                    ),
                )
    return _decode_other(buffer, pos, available, check_crc)


def decode_without_body(buffer: Buffer, pos: int = 0) -> Record:
    """Like `decode_record`, but leaves the body empty and does not check its CRC. The time does not depend on its size.

    Raises RecordError.
    """
    return _decode_other(buffer, pos, len(buffer) - pos, check_crc=False, with_body=False)


#: Flag, physical offset, born timestamp and host, store timestamp and host, reconsume times, prepared offset.
LateFields = tuple[int, int, int, bytes, int, bytes, int, int]


def late_fields(head: bytes) -> LateFields:
    """Returns the rarely used fields of a valid record. `head` has all bytes before the body."""
    if len(head) == BODY_AT_V4:
        return _unpack_late_v4(head)
    _, _, _, _, flag, _, physical_offset, sys_flag, born_timestamp = _HEAD.unpack_from(head)
    born_end = _HEAD_SIZE + (HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE_V4)
    (store_timestamp,) = _I64.unpack_from(head, born_end)
    store_end = len(head) - _AFTER_HOSTS.size
    reconsume_times, prepared, _ = _AFTER_HOSTS.unpack_from(head, store_end)
    born_host, store_host = head[_HEAD_SIZE:born_end], head[born_end + _I64.size : store_end]
    return (
        flag,
        physical_offset,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared,
    )


def record_properties(record: Buffer) -> bytes:
    """Returns the properties of one complete record. Does not check the body or CRC. Raises RecordError."""
    if len(record) >= FIXED_SIZE_V4:
        magic, sys_flag, body_length = _unpack_to_body(record)
        topic_at = BODY_AT_V4 + body_length
        if magic == MAGIC_V1 and not sys_flag & _HOST_V6 and BODY_AT_V4 <= topic_at < len(record):
            return bytes(record[topic_at + 3 + record[topic_at] :])
    return decode_record(record, check_crc=False).properties


def topic_and_properties(record: Buffer) -> tuple[bytes, bytes]:
    """Returns topic and properties of one complete record. Does not check the body or CRC. Raises RecordError."""
    if len(record) >= FIXED_SIZE_V4:
        magic, sys_flag, body_length = _unpack_to_body(record)
        topic_at = BODY_AT_V4 + body_length
        if magic == MAGIC_V1 and not sys_flag & _HOST_V6 and BODY_AT_V4 <= topic_at < len(record):
            topic_end = topic_at + 1 + record[topic_at]
            return bytes(record[topic_at + 1 : topic_end]), bytes(record[topic_end + 2 :])
    found = decode_record(record, check_crc=False)
    return found.topic, found.properties


def store_timestamp_at(buffer: Buffer, pos: int) -> int:
    """Returns the store time of the record at `pos`, in ms, or -1 if no record begins there. No other checks."""
    if pos + _STORE_TIMESTAMP_END_V6 > len(buffer):
        return -1
    magic, sys_flag = _unpack_magic_and_flags(buffer, pos)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return -1
    host_size = HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE_V4
    timestamp: int = _I64.unpack_from(buffer, pos + _HEAD_SIZE + host_size)[0]
    return timestamp


def pack_blank(buffer: bytearray | memoryview | Mapping, pos: int, size: int) -> None:
    """Writes the head of a blank of `size` bytes."""
    _BLANK.pack_into(buffer, pos, size, MAGIC_BLANK)


def _decode_other(buffer: Buffer, pos: int, available: int, check_crc: bool, *, with_body: bool = True) -> Record:
    """Decodes a record of any version and with any hosts. Raises RecordError with the reason if it is invalid."""
    if available < _HEAD_SIZE:
        raise RecordError(f"{available} bytes at {pos} are too few for a record")
    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = _HEAD.unpack_from(
        buffer, pos
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(f"magic {magic:#010x} at {pos} is no record's")
    if not FIXED_SIZE_V4 <= size <= available:
        raise RecordError(f"record at {pos} says it has {size} bytes, {available} are there")
    end = pos + size
    try:
        at = pos + _HEAD_SIZE
        born_end = at + (HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE_V4)
        (store_timestamp,) = _I64.unpack_from(buffer, born_end)
        store_start = born_end + 8
        store_end = store_start + (HOST_SIZE_V6 if sys_flag & STORE_HOST_V6 else HOST_SIZE_V4)
        reconsume_times, prepared, body_length = _AFTER_HOSTS.unpack_from(buffer, store_end)
        body_start = store_end + _AFTER_HOSTS.size
        body_end = body_start + body_length
        if body_length < 0 or body_end > end:
            raise RecordError(f"body of {body_length} bytes in the record of {size} at {pos}")
        if magic == MAGIC_V1:
            topic_start = body_end + 1
            topic_end = topic_start + buffer[body_end]
        else:
            topic_start = body_end + 2
            topic_end = topic_start + _I16.unpack_from(buffer, body_end)[0]
        properties_start = topic_end + 2
        properties_end = properties_start + _I16.unpack_from(buffer, topic_end)[0]
    except (IndexError, StructError) as e:
        raise RecordError(f"record of {size} bytes at {pos} is cut off") from e
    if not topic_start <= topic_end < properties_start <= properties_end == end:
        raise RecordError(f"lengths inside the record of {size} bytes at {pos} don't add up")
    body = bytes(buffer[body_start:body_end]) if with_body else b""
    if check_crc and crc32(body) & 0x7FFFFFFF != body_crc:
        raise RecordError(f"body of the record at {pos} has another CRC32 than {body_crc}")
    return Record(
        size,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        bytes(buffer[at:born_end]),
        store_timestamp,
        bytes(buffer[store_start:store_end]),
        reconsume_times,
        prepared,
        body_crc,
        body,
        bytes(buffer[topic_start:topic_end]),
        bytes(buffer[properties_start:properties_end]),
    )


def decode_records(buffer: Buffer, *, check_crc: bool = True) -> Iterator[Record]:
    """Yields consecutive records, as in the body of a pull response. Raises RecordError at an invalid record."""
    pos, end = 0, len(buffer)
    while pos < end:
        record = decode_record(buffer, pos, check_crc=check_crc)
        yield record
        pos += record.size


def encode_host(ip: str, port: int) -> bytes:
    """Returns a host field: 8 bytes for an IPv4 address, 20 bytes for IPv6."""
    return network.packed_ip(ip.partition("%")[0]) + _I32.pack(port)


def decode_host(host: bytes) -> str:
    """Returns the HOST:PORT of a host field, with brackets around an IPv6 address."""
    (port,) = _I32.unpack_from(host, len(host) - 4)
    if len(host) == HOST_SIZE_V4:
        return f"{network.ip_text(host[:4])}:{port}"
    return f"[{network.ip_text(host[:16])}]:{port}"
