"""JSON as Java's fastjson writes it, read tolerantly; written so that every client takes it.

fastjson leaves numeric map keys unquoted, `{"brokerAddrs":{0:"127.0.0.1:10911"}}`, which is no JSON. On the way in both
forms are read; on the way out keys are always quoted, which fastjson reads into `Map<Long, ...>` as well.
Source: remoting/protocol/RemotingSerializable, namesrv/processor/ClientRequestProcessor.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gantrymq.errors import BodyError

T = TypeVar("T")

# A string is matched first and left as it is, so that a digit and colon inside one are safe.
_BARE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"|([{,]\s*+)(-?\d++)(?=\s*+:)', re.DOTALL)
_encoder = msgspec.json.Encoder(order="deterministic")


def _quote(match: re.Match[bytes]) -> bytes:
    before, key = match.groups()
    return match.group() if key is None else b'%s"%s"' % (before, key)


def quote_bare_keys(data: bytes) -> bytes:
    """Standard JSON from fastjson's: numeric keys quoted, all else unchanged."""
    return _BARE_KEY.sub(_quote, data)


def decode_json(data: bytes, json_type: type[T]) -> T:
    """`data` as `json_type` (a msgspec.Struct, dict, ...); unknown fields are ignored. Raises BodyError."""
    try:
        return msgspec.json.decode(data, type=json_type, strict=False)
    except msgspec.ValidationError as e:
        raise BodyError(f"JSON body of {len(data)} bytes is not a {_name(json_type)}: {e}") from e
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.decode(quote_bare_keys(data), type=json_type, strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise BodyError(f"body of {len(data)} bytes is no JSON {_name(json_type)}: {e}") from e


def encode_json(value: Any) -> bytes:
    """Standard JSON; fields in a fixed order."""
    return _encoder.encode(value)


def _name(json_type: Any) -> str:
    return getattr(json_type, "__name__", str(json_type))
