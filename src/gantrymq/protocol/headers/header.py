"""The base class of typed headers, which define a command's ext fields.

The headers are in the other modules of this package, by subject. Field names on the wire are Java's camel case
(remoting/protocol/header/*). Fields without a default are required (@CFNotNull). Decode a header with
`RemotingCommand.read_header`, and pass one to `RemotingCommand.request` to encode it.
"""

from __future__ import annotations

from functools import cache

import msgspec


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base class of all headers."""


@cache
def _field_names(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True))


def header_fields(header: Header) -> dict[str, str]:
    """Returns the ext fields of a header. Values are formatted as by Java's toString. None is omitted."""
    fields: dict[str, str] = {}
    for name, wire_name in _field_names(type(header)):
        value = getattr(header, name)
        if type(value) is str:
            fields[wire_name] = value
        elif value is not None:
            fields[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields
