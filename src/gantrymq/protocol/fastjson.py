"""JSON as Java's fastjson writes it, read tolerantly; written so that every client takes it.

fastjson leaves numeric map keys unquoted, `{"brokerAddrs":{0:"127.0.0.1:10911"}}`, which is no JSON; so does fastjson2,
which RocketMQ uses since 5.4. On the way in both forms are read; on the way out keys are always quoted, which fastjson
reads into `Map<Long, ...>` as well. Clients in other languages write null for an empty list; fastjson and so this take
null for a field that isn't there.
Source: remoting/protocol/RemotingSerializable, namesrv/processor/ClientRequestProcessor.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from gantrymq.errors import BodyError
from gantrymq.protocol.json_header import UNREADABLE_JSON

T = TypeVar("T")

#: A heartbeat with 10,000 groups has 3 MiB.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
_MAX_TOLERATED_BYTES = 256 * 1024
#: While a body of this length or more is read nobody looks for cycles among the thousands of objects that it becomes:
#: 3 MiB of short groups take 25 ms then, and not 145.
_MANY_OBJECTS = 64 * 1024

# A string is matched first and left as it is, so that a digit and colon inside one are safe. One without an end is
# matched too: else each quote in it would be tried as the beginning of another, and 16 MiB would take days.
_BARE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([{,]\s*+)(-?\d++)(?=\s*+:)', re.DOTALL)
_BEFORE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{,]', re.DOTALL)
_STEP_BYTES = 16 * 1024
_encoder = msgspec.json.Encoder()


def _quote(match: re.Match[bytes]) -> bytes:
    before, key = match.groups()
    return match.group() if key is None else b'%s"%s"' % (before, key)


def quote_bare_keys(data: bytes) -> bytes:
    """Standard JSON from fastjson's: numeric keys quoted, all else unchanged."""
    return _BARE_KEY.sub(_quote, data)


def bare_keys_quoted_in_steps(data: bytes) -> Generator[None, None, bytes]:
    """`quote_bare_keys` in steps of about a millisecond; a longer string is one step."""
    pieces = []
    start = 0
    while start < len(data):
        # A piece ends before a bracket or comma that is in no string: so no string and no key is cut through.
        tokens = _BEFORE_KEY.finditer(data, start + 1)
        ends = (token.start() for token in tokens if token.start() > start + _STEP_BYTES and token.group() in b"{,")
        end = next(ends, len(data))
        pieces.append(quote_bare_keys(data[start:end]))
        start = end
        yield
    return b"".join(pieces)


def decode_json(data: bytes, json_type: type[T]) -> T:
    """`data` as `json_type` (a msgspec.Struct, dict, ...); unknown fields are ignored. Raises BodyError."""
    return _decode(data, json_type, sys.maxsize)


def decode_request_json(data: bytes, json_type: type[T]) -> T:
    """As `decode_json`, for the body of a request: in 50 ms, whatever it is. Raises BodyError.

    To read standard JSON takes 10 ns a byte, to read it tolerantly ten times as long: that is for what clients write.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise BodyError(f"body of {len(data)} bytes: JSON of at most {MAX_REQUEST_BYTES} is taken")
    return _decode(data, json_type, _MAX_TOLERATED_BYTES)


@contextmanager
def _without_collections() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _decode(data: bytes, json_type: type[T], most_tolerated: int) -> T:
    if len(data) < _MANY_OBJECTS:
        return _decode_now(data, json_type, most_tolerated)
    with _without_collections():
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
    """Standard JSON: fields in the order of their class, maps in their own, numeric keys quoted."""
    return _encoder.encode(value)


def _name(json_type: Any) -> str:
    return getattr(json_type, "__name__", str(json_type))
