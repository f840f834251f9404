"""What a typed header is: plain data that says what a command's ext fields mean.

The headers themselves are in the modules beside this one, each named for what its requests are about. Their wire names
are Java's camel case (remoting/protocol/header/*); fields without a default are required (@CFNotNull). Read one with
`RemotingCommand.read_header`, write one with `RemotingCommand.request`.
"""

from __future__ import annotations

from functools import cache

import msgspec


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all headers."""


@cache
def _field_names(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True))


def header_fields(header: Header) -> dict[str, str]:
    """The ext fields of a header: every value as Java's toString, None left out."""
    fields: dict[str, str] = {}
    for name, wire_name in _field_names(type(header)):
        value = getattr(header, name)
        if type(value) is str:
            fields[wire_name] = value
        elif value is not None:
            fields[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields
