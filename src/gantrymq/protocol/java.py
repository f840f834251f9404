"""Java's own number types and arithmetic, where RocketMQ's formats depend on them."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

#: `int` and `long`: numbers out of range are refused while they are decoded, not when a struct can't hold them.
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# Python imports a codec when it is first used; where descriptors have run out that would fail.
codecs.lookup("utf-16-be")


def string_hash_code(text: str) -> int:
    """`String.hashCode()`: a signed 32-bit number over UTF-16 code units."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h >= 0x80000000 else h


@lru_cache(maxsize=10_000)
def tags_code(tags: bytes) -> int:
    """What a consume queue keeps of a message's tags: the hash code of the whole TAGS property, 0 without one."""
    return string_hash_code(tags.decode(errors="replace")) if tags else 0
