"""Encodes and decodes the binary ("ROCKETMQ") form of a command header (`RocketMQSerializable`).

    int16 code | int8 language | int16 version | int32 opaque | int32 flag
    | int32 length + remark | int32 length + ext fields
    ext field: int16 length + name | int32 length + value

`code` has 16 bits, so codes from 200050 on don't fit. Encoding such a code raises HeaderError.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError

from gantrymq.errors import HeaderError
from gantrymq.protocol.json_header import LONG_FIELDS, MAX_FIELDS

#: The fixed fields, up to the remark's length. If the remark is empty, the length of the ext fields follows directly.
_FIXED = Struct(">hBhiiii")
_REMARK_START = _FIXED.size - 4
_I32 = Struct(">i")
_NAME_LENGTH = Struct(">h")
_MAX_CODE = 32767
_unpack_fixed = _FIXED.unpack_from
_pack_i32 = _I32.pack


def encode(code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext: bytes) -> bytes:
    """Returns the header bytes. `ext` is the result of `encode_fields`."""
    if code > _MAX_CODE:
        raise HeaderError(f"request code {code} doesn't fit the binary header's 16 bits: use JSON headers for it")
    try:
        if not remark:
            return _FIXED.pack(code, language, version, opaque, flag, 0, len(ext)) + ext
        remark_bytes = remark.encode()
        fixed = _FIXED.pack(code, language, version, opaque, flag, len(remark_bytes), 0)
    except (StructError, UnicodeEncodeError) as e:
        raise HeaderError(f"header of code {code} can't be written: {e}") from e
    return b"".join((fixed[:_REMARK_START], remark_bytes, _pack_i32(len(ext)), ext))


def decode(header: bytes) -> tuple[int, int, int, int, int, str | None, bytes]:
    """Returns (code, language, version, opaque, flag, remark, ext). `ext` is the input of `decode_fields`."""
    try:
        code, language, version, opaque, flag, remark_length, ext_length = _unpack_fixed(header)
        remark = None
        ext_start = _REMARK_START + 4
        if remark_length:
            remark_end = _REMARK_START + remark_length
            if not _REMARK_START < remark_end <= len(header) - 4:
                raise HeaderError(f"remark of {remark_length} bytes in a header of {len(header)}")
            remark = header[_REMARK_START:remark_end].decode()
            (ext_length,) = _I32.unpack_from(header, remark_end)
            ext_start = remark_end + 4
    except (StructError, UnicodeDecodeError) as e:
        raise HeaderError(f"binary header of {len(header)} bytes can't be read: {e}") from e
    ext_end = ext_start + ext_length
    if not ext_start <= ext_end <= len(header):
        raise HeaderError(f"ext fields of {ext_length} bytes in a header of {len(header)}")
    return code, language, version, opaque, flag, remark, header[ext_start:ext_end]


def encode_fields(fields: dict[str, str]) -> bytes:
    """Returns the ext fields in binary form."""
    parts: list[bytes] = []
    try:
        for name, value in fields.items():
            value_bytes = value.encode()
            parts += (_encode_name(name), _pack_i32(len(value_bytes)), value_bytes)
    except (StructError, UnicodeEncodeError) as e:
        raise HeaderError(f"ext field {name[:100]!r} can't be written: {e}") from e
    return b"".join(parts)


@lru_cache(1024)
def _encode_name(name: str) -> bytes:
    """Returns a field name with its length. Cached, because there are only a few hundred names."""
    name_bytes = name.encode()
    return _NAME_LENGTH.pack(len(name_bytes)) + name_bytes


def decode_fields(ext: bytes) -> dict[str, str]:
    """Returns the ext fields as a dictionary, without fields whose name or value is empty. Java reads these as null."""
    fields: dict[str, str] = {}
    pos, end = 0, len(ext)
    if end > LONG_FIELDS:
        _refuse_too_many(ext)
    try:
        while pos < end:
            (length,) = _NAME_LENGTH.unpack_from(ext, pos)
            pos += 2
            if not 0 <= length <= end - pos:
                raise HeaderError(f"ext field name of {length} bytes at {pos} of {end}")
            name = ext[pos : pos + length].decode()
            pos += length
            (length,) = _I32.unpack_from(ext, pos)
            pos += 4
            if not 0 <= length <= end - pos:
                raise HeaderError(f"value of ext field {name[:100]!r} has {length} bytes at {pos} of {end}")
            if length and name:
                fields[name] = ext[pos : pos + length].decode()
            pos += length
    except (StructError, UnicodeDecodeError) as e:
        raise HeaderError(f"ext fields can't be read at byte {pos} of {end}: {e}") from e
    return fields


def _refuse_too_many(ext: bytes) -> None:
    """Raises HeaderError if there are more than MAX_FIELDS fields. `decode_fields` detects other errors."""
    pos, end, fields = 0, len(ext), 0
    while pos + 2 <= end:
        (name_length,) = _NAME_LENGTH.unpack_from(ext, pos)
        pos += 2 + name_length
        if name_length < 0 or pos + 4 > end:
            return
        (value_length,) = _I32.unpack_from(ext, pos)
        pos += 4 + value_length
        if value_length < 0:
            return
        fields += 1
        if fields > MAX_FIELDS:
            raise HeaderError(f"ext fields of {end} bytes: more than {MAX_FIELDS} fields")
