"""The binary ("ROCKETMQ") form of a command header (`RocketMQSerializable`).

    int16 code | int8 language | int16 version | int32 opaque | int32 flag
    | int32 length + remark | int32 length + ext fields
    ext field: int16 length + name | int32 length + value

`code` has 16 bits, so the codes from 200050 on can't be carried; encoding one raises HeaderError.
"""

from __future__ import annotations

from struct import Struct

from gantrymq.errors import HeaderError

_FIXED = Struct(">hBhiii")
_FIXED_SIZE = _FIXED.size
_I32 = Struct(">i")
_NAME_LENGTH = Struct(">h")
_MAX_CODE = 32767


def encode(code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext: bytes) -> bytes:
    """The header bytes; `ext` comes from `encode_fields`."""
    if code > _MAX_CODE:
        raise HeaderError(f"request code {code} doesn't fit the binary header's 16 bits: use JSON headers for it")
    remark_bytes = remark.encode() if remark else b""
    return b"".join(
        (
            _FIXED.pack(code, language, version, opaque, flag, len(remark_bytes)),
            remark_bytes,
            _I32.pack(len(ext)),
            ext,
        )
    )


def decode(header: bytes) -> tuple[int, int, int, int, int, str | None, bytes]:
    """(code, language, version, opaque, flag, remark, ext); ext is left raw for `decode_fields`."""
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        pos = _FIXED_SIZE
        remark = None
        if remark_length:
            end = pos + remark_length
            if remark_length < 0 or end > len(header):
                raise HeaderError(f"remark of {remark_length} bytes in a header of {len(header)}")
            remark = header[pos:end].decode()
            pos = end
        (ext_length,) = _I32.unpack_from(header, pos)
    except HeaderError:
        raise
    except Exception as e:
        raise HeaderError(f"binary header of {len(header)} bytes can't be read: {e}") from e
    pos += 4
    if ext_length < 0 or pos + ext_length > len(header):
        raise HeaderError(f"ext fields of {ext_length} bytes in a header of {len(header)}")
    return code, language, version, opaque, flag, remark, header[pos : pos + ext_length]


def encode_fields(fields: dict[str, str]) -> bytes:
    """Ext fields in their binary form."""
    parts: list[bytes] = []
    for name, value in fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += (_NAME_LENGTH.pack(len(name_bytes)), name_bytes, _I32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def decode_fields(ext: bytes) -> dict[str, str]:
    """Ext fields as a dictionary; an empty name or value is left out, as Java reads it as null."""
    fields: dict[str, str] = {}
    pos, end = 0, len(ext)
    try:
        while pos < end:
            (length,) = _NAME_LENGTH.unpack_from(ext, pos)
            pos += 2
            if length < 0 or pos + length > end:
                raise HeaderError(f"ext field name of {length} bytes at {pos} of {end}")
            name = ext[pos : pos + length].decode()
            pos += length
            (length,) = _I32.unpack_from(ext, pos)
            pos += 4
            if length < 0 or pos + length > end:
                raise HeaderError(f"value of ext field {name!r} has {length} bytes at {pos} of {end}")
            if length and name:
                fields[name] = ext[pos : pos + length].decode()
            pos += length
    except HeaderError:
        raise
    except Exception as e:
        raise HeaderError(f"ext fields can't be read at byte {pos} of {end}: {e}") from e
    return fields
