"""Decoder of header blocks (HPACK, RFC 7541). Sent header blocks are literal and need no table."""

from __future__ import annotations

import re
from collections import deque

from gantrymq.proxy.http2 import huffman

#: The static table of RFC 7541, appendix A, from index 1 on.
_STATIC_TEXT = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|"
    ":status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|"
    "accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|"
    "authorization|cache-control|content-disposition|content-encoding|content-language|content-length|"
    "content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|"
    "proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|"
    "strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
#: The first entry is unused: indexes begin at 1.
_STATIC: tuple[tuple[bytes, bytes], ...] = (
    (b"", b""),
    *(
        (name.encode(), value.encode())
        for name, _, value in (field.partition("=") for field in _STATIC_TEXT.split("|"))
    ),
)
_FIRST_DYNAMIC = len(_STATIC)
#: Size of the dynamic table, bytes: the default of SETTINGS_HEADER_TABLE_SIZE, which the server never changes.
TABLE_SIZE = 4096
#: Bytes that the RFC adds to the name and value of each entry.
_ENTRY_OVERHEAD = 32


class HpackError(Exception):
    """Raised for an invalid header block. It makes the table unusable, so the connection ends."""


class TooManyHeaders(Exception):
    """Raised if the fields of a block exceed the limit. The rest is not decoded, so the table is unusable."""


class MalformedField(HpackError):
    """Raised if a name or value has characters that HTTP/2 forbids (RFC 9113, 8.2.1 and 8.3)."""


#: Pseudo-header fields; any other name that begins with a colon is malformed.
PSEUDO_HEADERS = frozenset((b":method", b":scheme", b":authority", b":path", b":status", b":protocol"))
#: Control characters, space, uppercase letters, a colon, DEL and bytes that are not ASCII.
_FORBIDDEN_IN_NAME = re.compile(rb"[\x00-\x20A-Z:\x7f-\xff]")
#: Spaces at the ends of a value are allowed, because gRPC permits a receiver to strip them.
_FORBIDDEN_IN_VALUE = re.compile(rb"[\x00\r\n]")


class HpackDecoder:
    """Decodes the header blocks of one connection in their order, with its dynamic table."""

    def __init__(self) -> None:
        #: The dynamic table, newest entry first.
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._max_size = TABLE_SIZE

    def decode(self, block: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the fields of a block.

        Raises HpackError, MalformedField, or TooManyHeaders for more than `most` bytes. Each field counts 32 bytes more
        than its length (RFC 9113, 6.5.2). Only the characters of literals are checked: fields from the table were
        checked when they were added. The 14 fields of a signed request, nearly all in the table, take 12 us.
        """
        fields: list[tuple[bytes, bytes]] = []
        total = 0
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index = first & 0x7F
                    at += 1
                    if index == 0x7F:
                        index, at = _long_integer(block, at, index)
                    field = self._entry(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self._insert(field)
                elif first & 0x20:
                    if fields:
                        raise HpackError("a change of the table's size after a field")
                    size, at = _integer(block, at, 0x1F)
                    if size > TABLE_SIZE:
                        raise HpackError(f"a table of {size} bytes, more than the {TABLE_SIZE} that were offered")
                    self._max_size = size
                    self._evict()
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                total += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
                # A block of 16 KiB can name 16,384 fields: stop at the limit.
                if total > most:
                    raise TooManyHeaders
                fields.append(field)
        except (IndexError, ValueError) as e:
            raise HpackError(f"a header block that can't be read: {e}") from e
        return fields

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index >= _FIRST_DYNAMIC:
            return self._table[index - _FIRST_DYNAMIC]
        if not index:
            raise HpackError("a field with the number 0")
        return _STATIC[index]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[tuple[bytes, bytes], int]:
        """Decodes a literal field, whose name is an index or a text. Returns the field and the position after it."""
        index, at = _integer(block, at, mask)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
            if name not in PSEUDO_HEADERS and (not name or _FORBIDDEN_IN_NAME.search(name)):
                raise MalformedField(f"a field with the name {name[:100]!r}")
        value, at = _string(block, at)
        if _FORBIDDEN_IN_VALUE.search(value):
            raise MalformedField(f"forbidden characters in the value of the field {name[:100]!r}")
        return (name, value), at

    def _insert(self, field: tuple[bytes, bytes]) -> None:
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
        self._evict()

    def _evict(self) -> None:
        while self._size > self._max_size:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_OVERHEAD


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Returns a number and the position after it. `mask` selects the bits of the number in the first byte."""
    number = block[at] & mask
    return (number, at + 1) if number < mask else _long_integer(block, at + 1, mask)


def _long_integer(block: bytes, at: int, number: int) -> tuple[int, int]:
    """Decodes the further bytes of a number that does not fit into its first byte."""
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise HpackError("a number that is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Decodes a text with or without Huffman code. Returns the text and the position after it."""
    is_coded = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HpackError("a text that is longer than its block")
    text = block[at:end]
    return (huffman.decode(text) if is_coded else text), end


#: The start of a block: it sets the size of the sender's dynamic table to 0.
SHRUNK_TABLE = b"\x20"


def literal(name: bytes, value: bytes) -> bytes:
    """Encodes a field of a response, without index and without Huffman code."""
    return b"\x00" + _sent_string(name) + _sent_string(value)


def _sent_string(text: bytes) -> bytes:
    """Encodes a text of a response: its length and its bytes."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    rest = length - 0x7F
    more = bytearray((0x7F,))
    while rest >= 0x80:
        more.append(rest & 0x7F | 0x80)
        rest >>= 7
    more.append(rest)
    return bytes(more) + text
