"""Bodies of messages as people read them: text, JSON or hex, and no more of them than a page can take."""

from __future__ import annotations

import msgspec

from gantrymq.errors import ProtocolError
from gantrymq.protocol.message import MessageExt

#: So much of a body is on its page, and in a list; the rest is downloaded.
MAX_TEXT = 64 * 1024
MAX_START = 160
#: Larger JSON isn't laid out: that takes the loop's time.
MAX_JSON = 256 * 1024
_HEX_ROW = 16
_MAX_HEX = 4096


class Body(msgspec.Struct):
    """A body. `kind` is json, text, binary, or damaged, whose `text` says why; `is_cut` when there is more."""

    kind: str
    text: str
    hex: str
    bytes: int
    is_cut: bool


def body_of(message: MessageExt) -> Body:
    """What is shown of it."""
    try:
        data = message.body
    except ProtocolError as e:
        stored = message.stored_body
        return Body("damaged", str(e), hex_of(stored), len(stored), len(stored) > _MAX_HEX)
    kind, text = text_of(data)
    return Body(kind, text[:MAX_TEXT], hex_of(data), len(data), len(text) > MAX_TEXT)


def start_of(message: MessageExt) -> str:
    """The first words of a body, on one line."""
    try:
        data = message.body[: 4 * MAX_START]
    except ProtocolError as e:
        return f"({e})"
    text = data.decode("utf-8", "replace")
    if "\0" in text or text.count("�") > len(text) // 8:
        return data[:32].hex(" ")
    return _printable(" ".join(text.split()))[:MAX_START]


def text_of(data: bytes) -> tuple[str, str]:
    """Its kind, and how it is read."""
    if len(data) <= MAX_JSON and data[:1] in (b"{", b"["):
        try:
            return "json", msgspec.json.format(data, indent=2).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        text = data[: 4 * MAX_TEXT + 4].decode()
    except UnicodeDecodeError as e:
        # A character that was cut in two is no reason.
        if len(data) <= 4 * MAX_TEXT + 4 or e.start < 4 * MAX_TEXT:
            return "binary", ""
        text = data[: e.start].decode()
    return ("binary", "") if "\0" in text else ("text", _printable(text, keep="\n\t"))


def hex_of(data: bytes) -> str:
    """Rows of an offset, 16 bytes and their ASCII, of the first 4 KiB."""
    rows = []
    for start in range(0, min(len(data), _MAX_HEX), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<47}  {readable}")
    return "\n".join(rows)


def _printable(text: str, keep: str = "") -> str:
    """Characters that change how others are read, as directions of writing do, are written by their numbers."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else f"\\u{ord(c):04x}" for c in text)
