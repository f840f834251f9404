"""Attributes of topics and groups as users write them. Source: `AttributeParser`."""

from __future__ import annotations


def parse_attributes(text: str) -> dict[str, str]:
    """Parses attributes such as "+a=b,-c" into the names and values of a request.

    Args:
        text: Items that are separated by commas: "+name=value" sets an attribute, "-name" removes it.

    Raises:
        ValueError: An item does neither.
    """
    attributes = {}
    for item in text.split(","):
        name, _, value = item.strip().partition("=")
        if not name:
            continue
        if not (name.startswith("-") or (name.startswith("+") and value)):
            raise ValueError(f"{item.strip()!r}: +name=value sets an attribute, -name removes it")
        attributes[name] = value
    return attributes
