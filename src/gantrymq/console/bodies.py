"""Previews of message bodies: their first KiB as text, JSON or hex. The whole body is available as a download.

Only the beginning of a compressed body is decompressed. A preview therefore takes a few milliseconds and at most 4 MiB.
JSON with up to MAX_DEPTH levels is indented. Indentation would make deeper JSON many times larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gantrymq.errors import ProtocolError
from gantrymq.protocol.compression import decompress_pieces
from gantrymq.protocol.message import MessageExt

#: Limits: bytes of a body on its page, characters of a body in a list, levels of indented JSON.
PREVIEW_BYTES = 1024
MAX_START = 160
MAX_DEPTH = 32
#: `contains` searches this many bytes at the beginning of a body.
SEARCHED_BYTES = 1024 * 1024
_HEX_ROW = 16
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
_JSON_SCALAR = re.compile(r'".*"|-?[0-9][0-9.eE+-]*|true|false|null', re.DOTALL)


class Body(msgspec.Struct):
    """The beginning of a body. `kind` is json, text, binary or damaged.

    If the body is damaged, `text` is the reason. `bytes` is the stored size. `is_cut` is true if the body is longer.
    """

    kind: str
    text: str
    hex: str
    bytes: int
    is_cut: bool


def preview_of(message: MessageExt, max_bytes: int = PREVIEW_BYTES) -> Body:
    """Returns a preview of the first `max_bytes` of a message's body."""
    stored = message.stored_body
    try:
        data = beginning_of(message, max_bytes + 1)
    except ProtocolError as e:
        return Body("damaged", str(e), hex_of(stored[:PREVIEW_BYTES]), len(stored), len(stored) > PREVIEW_BYTES)
    is_cut = len(data) > max_bytes
    kind, text = text_of(data[:max_bytes], is_cut=is_cut)
    return Body(kind, text, hex_of(data[:PREVIEW_BYTES]), len(stored), is_cut)


def beginning_of(message: MessageExt, count: int) -> bytes:
    """Returns the first `count` bytes of a message's body.

    Raises ProtocolError if the record or the compressed body is damaged.
    """
    if not message.is_packed or message.is_undecodable:
        return message.body[:count]
    found = b""
    for piece in pieces_of(message, count):
        found += piece
        if len(found) >= count:
            break
    return found[:count]


def contains(message: MessageExt, text: str) -> bool:
    """Returns True if a key, the tags, or the first SEARCHED_BYTES of the body contain a text."""
    if text in (message.tags or "") or any(text in key for key in message.keys):
        return True
    try:
        return text.encode() in beginning_of(message, SEARCHED_BYTES)
    except ProtocolError:
        return False


def pieces_of(message: MessageExt, piece_size: int) -> Iterator[bytes]:
    """Yields a message's body in pieces. Raises ProtocolError for a damaged body, possibly after some pieces."""
    if message.is_undecodable:
        yield message.body
    yield from decompress_pieces(message.stored_body, message.compression_flags, piece_size)


def start_of(message: MessageExt) -> str:
    """Returns the beginning of a body as one line of text."""
    try:
        data = beginning_of(message, 4 * MAX_START)
    except ProtocolError as e:
        return f"({e})"
    text = data.decode("utf-8", "replace")
    if "\0" in text or text.count("�") > len(text) // 8:
        return data[:32].hex(" ")
    return printable(" ".join(text.split()))[:MAX_START]


def text_of(data: bytes, *, is_cut: bool = False) -> tuple[str, str]:
    """Returns the kind and the text of a body. `is_cut` must be true if `data` is only the beginning of the body."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        # If the body is cut, its last character may be incomplete.
        if not is_cut or e.start < len(data) - 3:
            return "binary", ""
        text = data[: e.start].decode()
    if "\0" in text:
        return "binary", ""
    indented = _json_of(text, is_cut) if len(data) <= PREVIEW_BYTES and text[:1] in ("{", "[") else None
    return ("text" if indented is None else "json"), printable(text if indented is None else indented, keep="\n\t")


def _json_of(text: str, is_cut: bool) -> str | None:
    """Indents JSON. Returns None if the text is not JSON or is too deep."""
    parts: list[str] = []
    depth = 0
    tokens: list[str] = _JSON_TOKEN.findall(text)
    for number, token in enumerate(tokens):
        if token in ("{", "["):
            depth += 1
            if depth > MAX_DEPTH:
                return None
        elif token in ("}", "]"):
            depth -= 1
            if tokens[number - 1] not in ("{", "["):
                parts.append(_new_line(depth))
        elif token not in (",", ":") and not _JSON_SCALAR.fullmatch(token) and (not is_cut or number < len(tokens) - 1):
            return None
        parts.append(f"{token} " if token == ":" else token)
        if token == "," or (token in ("{", "[") and tokens[number + 1 : number + 2] not in (["}"], ["]"])):
            parts.append(_new_line(depth))
    if not is_cut:
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError:
            return None
    return "".join(parts)


def _new_line(depth: int) -> str:
    return "\n" + "  " * depth


def hex_of(data: bytes) -> str:
    """Returns a hex dump. Each row has an offset, 16 bytes and their ASCII characters."""
    rows = []
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<47}  {readable}")
    return "\n".join(rows)


def printable(text: str, keep: str = "") -> str:
    """Replaces invisible and directional characters by code points such as \\u202e, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else f"\\u{ord(c):04x}" for c in text)
