"""Reads JSON as Java's fastjson writes it, and writes JSON that every client can read.

fastjson does not quote numeric map keys: `{"brokerAddrs":{0:"127.0.0.1:10911"}}`. fastjson2, used by RocketMQ from 5.4
on, does the same. This is not valid JSON. This module reads both forms. It always writes keys with quotes, which
fastjson also reads into `Map<Long, ...>`. Clients in other languages write null for an empty list. As in fastjson, a
field with null counts as absent. Source: remoting/protocol/RemotingSerializable,
namesrv/processor/ClientRequestProcessor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from gantrymq.background.collector import without_collections
from gantrymq.errors import BodyError
from gantrymq.protocol.json_header import UNREADABLE_JSON

T = TypeVar("T")

#: Largest JSON body of a request, in bytes. A heartbeat with 10,000 groups has 3 MiB.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
_MAX_TOLERATED_BYTES = 256 * 1024
#: From this length on, garbage collection is off while a body is decoded, because it would visit thousands of new
#: objects. With 3 MiB of short groups, decoding then takes 25 ms instead of 145 ms.
_MANY_OBJECTS = 64 * 1024

# A string is matched first and left unchanged, so a digit and colon inside a string are safe. The pattern also matches
# an unterminated string. Otherwise each of its quotes would be tried as the start of a string, and 16 MiB would take
# days.
_BARE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([{,]\s*+)(-?\d++)(?=\s*+:)', re.DOTALL)
_BEFORE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{,]', re.DOTALL)
_STEP_BYTES = 16 * 1024
_encoder = msgspec.json.Encoder()


def _quote(match: re.Match[bytes]) -> bytes:
    before, key = match.groups()
    return match.group() if key is None else b'%s"%s"' % (before, key)


def quote_bare_keys(data: bytes) -> bytes:
    """Converts fastjson's JSON to standard JSON: quotes numeric keys and changes nothing else."""
    return _BARE_KEY.sub(_quote, data)


def bare_keys_quoted_in_steps(data: bytes) -> Generator[None, None, bytes]:
    """Runs `quote_bare_keys` in steps of about 1 ms. A longer string is one step."""
    pieces = []
    start = 0
    while start < len(data):
        # A piece ends before a bracket or comma outside strings, so no string or key is split.
        tokens = _BEFORE_KEY.finditer(data, start + 1)
        ends = (token.start() for token in tokens if token.start() > start + _STEP_BYTES and token.group() in b"{,")
        end = next(ends, len(data))
        pieces.append(quote_bare_keys(data[start:end]))
        start = end
        yield
    return b"".join(pieces)


def decode_json(data: bytes, json_type: type[T]) -> T:
    """Decodes `data` to `json_type` (a msgspec.Struct, dict, ...). Ignores unknown fields. Raises BodyError."""
    return _decode(data, json_type, sys.maxsize)


def decode_request_json(data: bytes, json_type: type[T]) -> T:
    """Works like `decode_json`, for a request's body: takes at most 50 ms for any input. Raises BodyError.

    Standard JSON takes 10 ns per byte. Decoding of fastjson's form takes ten times as long, so it is limited to the
    size of bodies that clients send.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise BodyError(f"body of {len(data)} bytes: JSON of at most {MAX_REQUEST_BYTES} is taken")
    return _decode(data, json_type, _MAX_TOLERATED_BYTES)


def _decode(data: bytes, json_type: type[T], most_tolerated: int) -> T:
    if len(data) < _MANY_OBJECTS:
        return _decode_now(data, json_type, most_tolerated)
    with without_collections():
        return _decode_now(data, json_type, most_tolerated)


def _decode_now(data: bytes, json_type: type[T], most_tolerated: int) -> T:
    try:
        return msgspec.json.decode(data, type=json_type, strict=False)
    except UNREADABLE_JSON as e:
        if len(data) > most_tolerated:
            raise BodyError(f"body of {len(data)} bytes is no {_name(json_type)} in JSON: {e}") from e
    try:
        value = _without_nulls(msgspec.json.decode(quote_bare_keys(data)))
        return msgspec.convert(value, json_type, strict=False)
    except UNREADABLE_JSON as e:
        raise BodyError(f"body of {len(data)} bytes is no {_name(json_type)} in JSON: {e}") from e


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value


def encode_json(value: Any) -> bytes:
    """Returns standard JSON: fields in the order of their class, maps in their own order, numeric keys quoted."""
    return _encoder.encode(value)


def _name(json_type: Any) -> str:
    return getattr(json_type, "__name__", str(json_type))
