"""Encodes and decodes the JSON form of a command header (`RemotingSerializable.encode` of a `RemotingCommand`).

`extFields` stays encoded until it is used. Typed headers are decoded directly from it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.errors import HeaderError
from gantrymq.protocol.codes import LanguageCode
from gantrymq.protocol.java import Int32

_LANGUAGES: dict[str, int] = {language.name: language.value for language in LanguageCode}
_NAMES: dict[int, str] = {language.value: language.name for language in LanguageCode}


class _JsonHeader(msgspec.Struct):
    code: Int32
    language: str | int | None = None
    version: Int32 = 0
    opaque: Int32 = 0
    flag: Int32 = 0
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw()


_decode_header = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_decode_fields = msgspec.json.Decoder(dict[str, str]).decode
_decode_any_fields = msgspec.json.Decoder(dict[str, Any]).decode
_encode_json = msgspec.json.Encoder().encode

#: In bytes. The fields in longer ext fields are counted before decoding: 2 MiB of tiny fields would take 0.13 s.
LONG_FIELDS = 64 * 1024
#: Largest number of ext fields of a header, in any encoding. RocketMQ's longest header has about 30.
MAX_FIELDS = 10_000

#: Errors that msgspec raises for invalid JSON.
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext: bytes) -> bytes:
    """Returns the header bytes, with the fields in Java's order. `ext` is the result of `encode_fields`, or empty."""
    try:
        remark_json = b'"remark":%s,' % _encode_json(remark) if remark else b""
    except UnicodeEncodeError as e:
        raise HeaderError(f"remark of code {code} can't be written: {e}") from e
    return b'{"code":%d,%s"flag":%d,"language":"%s","opaque":%d,%s"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        code,
        b'"extFields":%s,' % ext if ext else b"",
        flag,
        _NAMES.get(language, "OTHER").encode(),
        opaque,
        remark_json,
        version,
    )


def decode(header: bytes) -> tuple[int, int, int, int, int, str | None, bytes]:
    """Returns (code, language, version, opaque, flag, remark, ext). `ext` is the input of `decode_fields`."""
    try:
        parsed = _decode_header(header)
    except UNREADABLE_JSON as e:
        raise HeaderError(f"JSON header of {len(header)} bytes can't be read: {e}") from e
    language = parsed.language
    return (
        parsed.code,
        language if isinstance(language, int) else _LANGUAGES.get(language or "JAVA", LanguageCode.OTHER),
        parsed.version,
        parsed.opaque,
        parsed.flag,
        parsed.remark,
        bytes(parsed.extFields),
    )


def encode_fields(fields: dict[str, str]) -> bytes:
    """Returns the ext fields as a JSON object."""
    try:
        return _encode_json(fields) if fields else b""
    except UnicodeEncodeError as e:
        raise HeaderError(f"extFields can't be written: {e}") from e


def decode_fields(ext: bytes) -> dict[str, str]:
    """Returns the ext fields as a dictionary. Accepts numbers instead of strings. Omits null."""
    if not ext or ext == b"null":
        return {}
    # A field has two or four quotation marks. The count includes escaped quotation marks in values.
    if len(ext) > LONG_FIELDS and ext.count(b'"') > 4 * MAX_FIELDS:
        raise HeaderError(f"extFields of {len(ext)} bytes: more than {MAX_FIELDS} fields")
    try:
        try:
            return _decode_fields(ext)
        except msgspec.ValidationError:
            fields = _decode_any_fields(ext)
            return {k: v if isinstance(v, str) else _text(v) for k, v in fields.items() if v is not None}
    except UNREADABLE_JSON as e:
        raise HeaderError(f"extFields can't be read: {e}") from e


def _text(value: Any) -> str:
    return _encode_json(value).decode()
