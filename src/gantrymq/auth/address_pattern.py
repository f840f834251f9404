"""Address patterns of plain_acl.yml: clients at matching addresses need no signature (`RemoteAddressStrategyFactory`).

    *                          all addresses
    192.168.1.5                one address, IPv4 or IPv6
    192.168.1.5,192.168.1.7    several addresses
    192.168.1.{5,7}            the same addresses
    192.168.1-20.*             each part is a number, a range or *; an IPv6 range is hexadecimal

Java ignores the parts after the first range or star, so 10.0.*.5 matches all of 10.0. GantryMQ checks every part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

#: Returns True if a client's address matches the pattern.
Matches = Callable[[str], bool]

_EVERYBODY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_RANGE_V4 = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_RANGE_V6 = re.compile(r"([0-9a-fA-F]{1,4})(?:-([0-9a-fA-F]{1,4}))?")


def parse_pattern(pattern: str) -> Matches:
    """Returns a function that matches addresses. A blank pattern matches none. Raises ValueError if invalid."""
    pattern = pattern.strip()
    if not pattern:
        return _nobody
    if pattern in _EVERYBODY:
        return _everybody
    if pattern.endswith("}"):
        before, brace, last = pattern[:-1].partition("{")
        if not brace or before[-1:] not in (".", ":"):
            raise ValueError(f"{pattern!r}: only the last part may be a list in braces")
        return _one_of([before + part.strip() for part in last.split(",")])
    if "," in pattern:
        return _one_of([part.strip() for part in pattern.split(",")])
    if "*" in pattern or "-" in pattern:
        return _in_ranges(pattern)
    return _one_of([pattern])


def _nobody(host: str) -> bool:
    return False


def _everybody(host: str) -> bool:
    return True


def _one_of(addresses: list[str]) -> Matches:
    wanted = {_parts(address) for address in addresses}
    if None in wanted:
        raise ValueError(f"{', '.join(addresses)}: not all of these are IP addresses")
    return lambda host: _parts(host) in wanted


def _in_ranges(pattern: str) -> Matches:
    is_v6 = ":" in pattern
    parts = pattern.split(":" if is_v6 else ".")
    if is_v6 and pattern.count("::") == 1:
        before, after = ([part for part in side.split(":") if part] for side in pattern.split("::"))
        parts = [*before, *["0"] * (8 - len(before) - len(after)), *after]
    if len(parts) != (8 if is_v6 else 4):
        raise ValueError(f"{pattern!r} has {len(parts)} parts: an address has {8 if is_v6 else 4}")
    ranges = [_range(part.strip(), pattern, is_v6=is_v6) for part in parts]

    def matches(host: str) -> bool:
        numbers = _parts(host)
        return (
            numbers is not None
            and len(numbers) == len(ranges)
            and all(low <= number <= high for number, (low, high) in zip(numbers, ranges, strict=True))
        )

    return matches


def _range(part: str, pattern: str, *, is_v6: bool) -> tuple[int, int]:
    highest = 0xFFFF if is_v6 else 255
    if part == "*":
        return 0, highest
    match = (_RANGE_V6 if is_v6 else _RANGE_V4).fullmatch(part)
    if match is None:
        raise ValueError(f"{pattern!r}: {part!r} is not a number, a range or *")
    low = int(match[1], 16 if is_v6 else 10)
    high = int(match[2], 16 if is_v6 else 10) if match[2] else low
    if not low <= high <= highest:
        raise ValueError(f"{pattern!r}: {part!r} is not within 0-{highest:{'x' if is_v6 else 'd'}}")
    return low, high


@lru_cache(4096)
def _parts(host: str) -> tuple[int, ...] | None:
    """Returns an address as numbers; None if it is invalid. A mapped IPv4 address has the parts of the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            packed = address.packed
            return tuple(int.from_bytes(packed[i : i + 2], "big") for i in range(0, 16, 2))
        address = address.ipv4_mapped
    return tuple(address.packed)
