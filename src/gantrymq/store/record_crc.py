"""A checksum over a whole record, as its last property (enabledAppendPropCRC, `MessageDecoder.createCrc32`).

`__CRC32# \\x01 0123456789 \\x02`: the CRC32 of all before it, without the sign bit, ten digits, the last one first.
"""

from __future__ import annotations

from zlib import crc32

from gantrymq.protocol.record import Buffer, encode_record

_NAME = b"__CRC32#\x01"
_PLACE = _NAME + b"0" * 10 + b"\x02"


def encode_record_with_crc(
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
    """As `encode_record`; a checksum that the properties have already is dropped."""
    if _NAME in properties:
        properties = b"".join(
            item + b"\x02" for item in properties.split(b"\x02") if item and not item.startswith(_NAME)
        )
    elif properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    record = encode_record(
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
        body,
        topic,
        properties + _PLACE,
    )
    return record[: -len(_PLACE)] + _property(record[: -len(_PLACE)])


def has_crc(record: Buffer) -> bool:
    return bytes(record[-len(_PLACE) : -len(_PLACE) + len(_NAME)]) == _NAME


def has_right_crc(record: Buffer) -> bool:
    return bytes(record[-len(_PLACE) :]) == _property(record[: -len(_PLACE)])


def _property(checked: Buffer) -> bytes:
    digits = b"%010d" % (crc32(checked) & 0x7FFFFFFF)
    return _NAME + digits[::-1] + b"\x02"
