"""The JSON form of a command header (`RemotingSerializable.encode` of a `RemotingCommand`).

`extFields` stays raw until somebody asks: typed headers are decoded straight from it.
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

#: Ext fields of so many bytes are looked at before they are made a dictionary: 2 MiB of tiny fields take 0.13 s.
LONG_FIELDS = 64 * 1024
#: So many fields are read, of any encoding; the longest header of RocketMQ has some 30.
MAX_FIELDS = 10_000

#: What msgspec raises for bytes that aren't the JSON expected.
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext: bytes) -> bytes:
    """The header bytes; `ext` comes from `encode_fields`, empty for none. Fields in Java's order."""
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
    """(code, language, version, opaque, flag, remark, ext); ext is left raw for `decode_fields`."""
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
    """Ext fields as a JSON object."""
    try:
        return _encode_json(fields) if fields else b""
    except UnicodeEncodeError as e:
        raise HeaderError(f"extFields can't be written: {e}") from e


def decode_fields(ext: bytes) -> dict[str, str]:
    """Ext fields as a dictionary. Peers that write numbers instead of strings are read too; null is left out."""
    if not ext or ext == b"null":
        return {}
    # A field has two quotation marks or four; those that a value escapes count as well.
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
