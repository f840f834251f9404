"""Attributes of topics and groups, and how a request changes them (`AttributeParser`, `AttributeUtil`)."""

from __future__ import annotations

from collections.abc import Mapping

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode


def parse_changes(text: str | None) -> dict[str, str]:
    """`+name=value,-other` as {"+name": "value", "-other": ""}."""
    pairs = (item.strip().partition("=") for item in (text or "").split(",") if item.strip())
    return {name: value for name, _, value in pairs}


def altered(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """`current` with what `+name` sets and `-name` takes away. Raises RequestRefused for a name without its sign."""
    attributes = dict(current)
    for name, value in changes.items():
        if len(name) < 2 or name[0] not in "+-":
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"attribute {name[:200]!r}: +NAME=VALUE sets an attribute, -NAME takes it away",
            )
        if name[0] == "+":
            attributes[name[1:]] = value
        else:
            attributes.pop(name[1:], None)
    return attributes
