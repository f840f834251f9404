"""Java's own arithmetic where RocketMQ's formats depend on it."""

from __future__ import annotations


def string_hash_code(text: str) -> int:
    """`String.hashCode()`: a signed 32-bit number over UTF-16 code units."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h >= 0x80000000 else h
