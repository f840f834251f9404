"""Java's number types and hash codes, which RocketMQ's formats depend on."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

#: Java's `int` and `long`. Numbers out of range are rejected during decoding.
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# Loads the codec. Python would otherwise load it on first use, which fails if no file descriptor is left.
codecs.lookup("utf-16-be")


def string_hash_code(text: str) -> int:
    """Returns Java's `String.hashCode()`: a signed 32-bit number over UTF-16 code units."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h >= 0x80000000 else h


@lru_cache(maxsize=10_000)
def tags_code(tags: bytes) -> int:
    """Returns the tags code in a consume queue: the hash code of the whole TAGS property, or 0 if it is empty."""
    return string_hash_code(tags.decode(errors="replace")) if tags else 0
