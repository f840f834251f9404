"""JSON bodies. msgspec decodes a body and checks it against the type of the column.

| Spark | JSON |
|---|---|
| bigint, int, smallint, tinyint | integer within the bounds of the type |
| double, float, decimal | number |
| string, boolean | string, boolean |
| timestamp, timestamp_ntz, date | string in RFC 3339 format: 2026-01-31T12:00:00Z, 2026-01-31 |
| binary | string in Base64 |
| array | array |
| map with string keys, struct | object |

A missing field is null. If the field is `not null`, the body is invalid. Fields that the type lacks are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from types import GenericAlias
from typing import Annotated, Any, NotRequired, TypedDict, cast

import msgspec
import pyarrow as pa
from pyarrow import types

from gantrymq.arrow.body_values import DecodeBody
from gantrymq.codecs.json import JsonCodec
from gantrymq.errors import CodecError, ConfigError

#: Larger numbers would silently become infinity.
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
#: Types that Spark passes as structs of binaries: {marker in the metadata of one of their fields: remedy for errors}.
_MARKED = {
    b"variant": "write to_json(it) as the body; read the body as a string, and parse_json(it)",
    b"geometry": "st_asbinary(it) is a binary",
    b"geography": "st_asbinary(it) is a binary",
}
#: mypy accepts TypedDict only as a statement.
_make_typed_dict: Callable[[str, dict[str, Any]], Any] = cast(Any, TypedDict)


def json_decoder(kind: pa.DataType) -> DecodeBody:
    """Returns a decoder for values of this type. Raises ConfigError for a type that JSON bodies don't support."""
    decode, exact = JsonCodec(_checked(kind, "value")).decode, _exact(kind)
    return decode if exact is None else lambda body: exact(decode(body))


def _exact(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that sets a value's decimals to the scale of their type; None for types without decimals.

    The function raises CodecError for a decimal that doesn't fit. Without this function, pyarrow misreads exponents
    below about -57, and crashes at exponents of some millions.
    """
    if types.is_decimal(kind):
        return _exact_decimal(kind)
    if types.is_list(kind) and (of_item := _exact(kind.value_type)) is not None:
        return lambda value: None if value is None else [of_item(item) for item in value]
    if types.is_map(kind) and (of_value := _exact(kind.item_type)) is not None:
        return lambda value: None if value is None else {key: of_value(item) for key, item in value.items()}
    if types.is_struct(kind):
        fields = {field.name: exact for field in kind if (exact := _exact(field.type)) is not None}
        if fields:
            return lambda value: (
                None
                if value is None
                else value | {name: exact(value[name]) for name, exact in fields.items() if name in value}
            )
    return None


def _exact_decimal(kind: pa.DataType) -> Callable[[Decimal | None], Decimal | None]:
    unit, context = Decimal(1).scaleb(-kind.scale), Context(kind.precision, traps=[Inexact, InvalidOperation])

    def exact(value: Decimal | None) -> Decimal | None:
        try:
            return None if value is None else value.quantize(unit, context=context)
        except ArithmeticError as e:
            raise CodecError(f"a number doesn't fit {kind}") from e

    return exact


def _checked(kind: pa.DataType, name: str) -> Any:
    """Returns the type with which msgspec checks values of `kind`. `name` is the field in errors."""
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
