"""JSON bodies, checked against the column's type while they are decoded (msgspec).

    bigint, int, smallint, tinyint      whole numbers, within bounds
    double, float, decimal              numbers
    string, boolean
    timestamp, timestamp_ntz, date      texts as RFC 3339 has them: 2026-01-31T12:00:00Z, 2026-01-31
    binary                              Base64
    array, map (of strings), struct     what JSON calls array and object

A field that is missing is null, unless it is `not null`: then the body can't be read. Fields that the type hasn't got
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, NotRequired, TypedDict, cast

import msgspec
import pyarrow as pa
from pyarrow import types

from gantrymq.codecs.json import JsonCodec
from gantrymq.errors import ConfigError
from gantrymq.spark.bodies.decoding import DecodeBody

#: Beyond it a number would become infinite without a word.
_LARGEST_FLOAT = 3.4028234663852886e38
_SIMPLE: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (types.is_boolean, bool),
    (types.is_float32, Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]),
    (types.is_floating, float),
    (types.is_decimal, Decimal),
    (types.is_string, str),
    (types.is_binary, bytes),
    (types.is_timestamp, datetime),
    (types.is_date, date),
]
#: Types that come as structs of binaries, and what Spark marks one of their fields with.
_MARKED = {
    b"variant": "write to_json(it) as the body; read the body as a string, and parse_json(it)",
    b"geometry": "st_asbinary(it) is a binary",
    b"geography": "st_asbinary(it) is a binary",
}
#: mypy knows it as a statement only.
_make_typed_dict: Callable[[str, dict[str, Any]], Any] = cast(Any, TypedDict)


def json_decoder(kind: pa.DataType) -> DecodeBody:
    """For values of this type. Raises ConfigError for a type that JSON has nothing for."""
    return JsonCodec(_checked(kind, "value")).decode


def _checked(kind: pa.DataType, name: str) -> Any:
    """The type that msgspec checks a value of `kind` by; `name` is where it stands."""
    if types.is_signed_integer(kind):
        least = -(2 ** (kind.bit_width - 1))
        return Annotated[int, msgspec.Meta(ge=least, le=-least - 1)]
    for is_kind, checked in _SIMPLE:
        if is_kind(kind):
            return checked
    if types.is_list(kind):
        return GenericAlias(list, (_field(kind.value_field, f"{name}[]"),))
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise ConfigError(f"{name} is a map with keys of {kind.key_type}: those of JSON are strings")
        return GenericAlias(dict, (str, _field(kind.item_field, f"{name}[]")))
    if types.is_struct(kind):
        fields: dict[str, Any] = {}
        for field in kind:
            if marks := _MARKED.keys() & (field.metadata or {}).keys():
                mark = marks.pop()
                raise ConfigError(f"{name} is {mark.decode()}, which bodies of JSON don't have: {_MARKED[mark]}")
            checked = _field(field, f"{name}.{field.name}")
            fields[field.name] = NotRequired[checked] if field.nullable else checked
        return _make_typed_dict(name, fields)
    raise ConfigError(f"{name} is {kind}, which bodies of JSON can't be read as")


def _field(field: pa.Field, name: str) -> Any:
    checked = _checked(field.type, name)
    return checked | None if field.nullable else checked
