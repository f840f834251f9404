"""A checksum over a whole record, stored as its last property (`enabledAppendPropCRC`, `MessageDecoder.createCrc32`).

`__CRC32# \\x01 0123456789 \\x02`: the CRC32 of everything before it, without the sign bit, as ten digits in reverse.
"""

from __future__ import annotations

from zlib import crc32

from gantrymq.protocol.properties import CRC32
from gantrymq.protocol.record import Buffer

_NAME = CRC32.encode() + b"\x01"
_PLACE = _NAME + b"0" * 10 + b"\x02"
#: Maximum number of bytes added to the properties. They may lack the last separator.
CRC_LENGTH = len(_PLACE) + 1


def reserve_crc(properties: bytes) -> bytes:
    """Returns the properties with space for the checksum. Removes an existing checksum."""
    properties = without_crc(properties)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + _PLACE


def without_crc(properties: bytes) -> bytes:
    """Returns the properties without the checksum of the record that they come from."""
    if _NAME not in properties:
        return properties
    return b"".join(item + b"\x02" for item in properties.split(b"\x02") if item and not item.startswith(_NAME))


def fill_crc(record: bytes) -> bytes:
    """Returns a record with its checksum filled in. `reserve_crc` must have reserved the space."""
    checked = record[: -len(_PLACE)]
    return checked + _property(checked)


def has_crc(record: Buffer) -> bool:
    """Returns whether the record has a checksum."""
    return bytes(record[-len(_PLACE) : -len(_PLACE) + len(_NAME)]) == _NAME


def has_wrong_crc(records: bytes, start: int, end: int) -> bool:
    """Returns whether the record in this range has a checksum that is wrong."""
    at = end - len(_PLACE)
    return records.startswith(_NAME, at, end) and records[at:end] != _property(records[start:at])


def has_right_crc(record: Buffer) -> bool:
    """Returns whether the record has a valid checksum."""
    return bytes(record[-len(_PLACE) :]) == _property(record[: -len(_PLACE)])


def _property(checked: Buffer) -> bytes:
    digits = b"%010d" % (crc32(checked) & 0x7FFFFFFF)
    return _NAME + digits[::-1] + b"\x02"
