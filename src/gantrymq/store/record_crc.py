"""A checksum over a whole record, as its last property (enabledAppendPropCRC, `MessageDecoder.createCrc32`).

`__CRC32# \\x01 0123456789 \\x02`: the CRC32 of all before it, without the sign bit, ten digits, the last one first.
"""

from __future__ import annotations

from zlib import crc32

from gantrymq.protocol.properties import CRC32
from gantrymq.protocol.record import Buffer

_NAME = CRC32.encode() + b"\x01"
_PLACE = _NAME + b"0" * 10 + b"\x02"
#: So much longer the properties get at most: they may lack the last separator.
CRC_LENGTH = len(_PLACE) + 1


def reserve_crc(properties: bytes) -> bytes:
    """Properties with a place for the checksum; one that they have already is dropped."""
    properties = without_crc(properties)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + _PLACE


def without_crc(properties: bytes) -> bytes:
    """Properties without the checksum of the record that they come from."""
    if _NAME not in properties:
        return properties
    return b"".join(item + b"\x02" for item in properties.split(b"\x02") if item and not item.startswith(_NAME))


def fill_crc(record: bytes) -> bytes:
    """A record that was encoded with the place, with its checksum there."""
    checked = record[: -len(_PLACE)]
    return checked + _property(checked)


def has_crc(record: Buffer) -> bool:
    return bytes(record[-len(_PLACE) : -len(_PLACE) + len(_NAME)]) == _NAME


def has_wrong_crc(records: bytes, start: int, end: int) -> bool:
    """Whether the record in there has a checksum, and another one than is right."""
    at = end - len(_PLACE)
    return records.startswith(_NAME, at, end) and records[at:end] != _property(records[start:at])


def has_right_crc(record: Buffer) -> bool:
    return bytes(record[-len(_PLACE) :]) == _property(record[: -len(_PLACE)])


def _property(checked: Buffer) -> bytes:
    digits = b"%010d" % (crc32(checked) & 0x7FFFFFFF)
    return _NAME + digits[::-1] + b"\x02"
