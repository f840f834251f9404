"""Converts JSON values to values of an Avro schema, with an error that names the field.

It is the inverse of `Codec.to_json`: bytes are Base64, times are in the format of RFC 3339, decimals are strings.
"""

from __future__ import annotations

import binascii
import threading
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, DecimalTuple, InvalidOperation
from typing import Any
from uuid import UUID

from fastavro import parse_schema

from gantrymq.codecs.registry.field_errors import listed, wrong_value
from gantrymq.errors import CodecError

#: Converts a JSON value. The second argument is the path of its field. Raises CodecError.
Convert = Callable[[Any, str], Any]


#: The limit for the types of unions that are tried for one value: this number, and more for each byte of its JSON.
#: In a recursive schema with unions of several records, the number can double with each level of the value.
_FREE_ATTEMPTS = 100_000
_ATTEMPTS_PER_BYTE = 20


class _Attempts(threading.local):
    """The number of types that can still be tried for the value of this thread."""

    left = 0


class _TooManyAttempts(CodecError):
    """Raised if the conversion of a value exceeds its limit."""


def avro_from_json(schema: Any) -> Callable[[Any, int], Any]:
    """Returns a function that converts decoded JSON to a value of an Avro schema. It raises CodecError.

    The second argument of the function is the size of the JSON in bytes.
    """
    converters = _Converters()
    convert = converters.of(parse_schema(schema))

    def from_json(value: Any, size: int) -> Any:
        converters.attempts.left = _FREE_ATTEMPTS + _ATTEMPTS_PER_BYTE * size
        try:
            return convert(value, "")
        except RecursionError as e:
            raise CodecError("the value is nested too deeply") from e

    return from_json


class _Converters:
    def __init__(self) -> None:
        #: By full name. Types whose own parts are being processed are missing.
        self._named: dict[str, Convert] = {}
        self.attempts = _Attempts()

    def of(self, schema: Any) -> Convert:
        if isinstance(schema, list):
            return _union([(branch, self.of(branch)) for branch in schema], self.attempts)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or (lambda value, path: self._named[schema](value, path))
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        if (logical := _LOGICAL.get((kind, schema.get("logicalType", "")))) is not None:
            return logical
        if kind == "bytes" and schema.get("logicalType") == "decimal":
            return _decimal(schema)
        if kind == "array":
            return _array(self.of(schema["items"]))
        if kind == "map":
            return _map(self.of(schema["values"]))
        if kind in ("record", "error", "enum", "fixed"):
            found = self._named[schema["name"]] = self._definition(kind, schema)
            return found
        return self.of(kind)

    def _definition(self, kind: str, schema: dict[str, Any]) -> Convert:
        if kind == "enum":
            return _enum(schema["symbols"])
        if kind == "fixed":
            # A decimal is a number for people, whatever its encoding.
            return _decimal(schema) if schema.get("logicalType") == "decimal" else _fixed(schema["size"])
        fields = {field["name"]: (self.of(field["type"]), "default" in field) for field in schema["fields"]}
        return _record(schema["name"], fields)


def _number(low: int, high: int, name: str) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise wrong_value(path, value, name)
        return value

    return convert


def _null(value: Any, path: str) -> None:
    if value is not None:
        raise wrong_value(path, value, "null")


def _boolean(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise wrong_value(path, value, "true or false")
    return value


def _float(value: Any, path: str) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_value(path, value, "a number")
    return value


def _string(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise wrong_value(path, value, "a string")
    return value


def _bytes(value: Any, path: str) -> Any:
    try:
        return b64decode(_string(value, path), validate=True)
    except (binascii.Error, ValueError, CodecError) as e:
        raise wrong_value(path, value, "a string with bytes in Base64") from e


def _fixed(size: int) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if len(data := _bytes(value, path)) != size:
            raise wrong_value(path, value, f"{size} bytes in Base64")
        return data

    return convert


def _enum(symbols: list[str]) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise wrong_value(path, value, f"one of {listed(symbols)}")
        return value

    return convert


def _array(item: Convert) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise wrong_value(path, value, "an array")
        return [item(part, f"{path}[{number}]") for number, part in enumerate(value)]

    return convert


def _map(of_value: Convert) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong_value(path, value, "an object")
        return {key: of_value(part, f"{path}[{key!r}]") for key, part in value.items()}

    return convert


def _record(name: str, fields: dict[str, tuple[Convert, bool]]) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong_value(path, value, f"an object with the fields of {name}")
        within = f"{path}." if path else ""
        for key in value:
            if key not in fields:
                raise CodecError(f"field {within}{key} is not in the schema: {name} has {listed(fields)}")
        found = {}
        for key, (of_field, has_default) in fields.items():
            if key in value:
                found[key] = of_field(value[key], f"{within}{key}")
            elif not has_default:
                raise CodecError(f"field {within}{key} is missing: add it, because the schema has no default for it")
        return found

    return convert


def _union(branches: list[tuple[Any, Convert]], attempts: _Attempts) -> Convert:
    has_null = any(branch == "null" for branch, _ in branches)
    # Bytes come last, because many texts are valid Base64.
    others = sorted(
        (pair for pair in branches if pair[0] != "null"),
        key=lambda pair: pair[0] == "bytes" or (isinstance(pair[0], dict) and pair[0]["type"] in ("bytes", "fixed")),
    )

    def convert(value: Any, path: str) -> Any:
        if value is None and has_null:
            return None
        if len(others) == 1:
            return others[0][1](value, path)
        for _, of_branch in others:
            attempts.left -= 1
            if attempts.left < 0:
                raise _TooManyAttempts(
                    "the value fits too many combinations of the types of unions: simplify the schema"
                )
            try:
                return of_branch(value, path)
            except _TooManyAttempts:
                raise
            except CodecError:
                continue
        names = [branch if isinstance(branch, str) else branch.get("name", branch["type"]) for branch, _ in branches]
        raise wrong_value(path, value, f"a value of one of the types {listed(map(str, names))}")

    return convert


def _iso(of_number: Convert, parse: Callable[[str], Any], wanted: str, *, has_zone: bool | None = None) -> Convert:
    """Converts a text. An integer is the number that Avro stores."""

    def convert(value: Any, path: str) -> Any:
        if isinstance(value, int):
            return of_number(value, path)
        try:
            found = parse(value)
        except (TypeError, ValueError) as e:
            raise wrong_value(path, value, wanted) from e
        if has_zone is not None and (found.tzinfo is not None) is not has_zone:
            raise wrong_value(path, value, wanted)
        return found

    return convert


def _uuid(value: Any, path: str) -> Any:
    try:
        return UUID(_string(value, path))
    except (CodecError, ValueError) as e:
        raise wrong_value(path, value, "a UUID, such as 123e4567-e89b-12d3-a456-426614174000") from e


def _decimal(schema: dict[str, Any]) -> Convert:
    scale, precision = schema.get("scale", 0), schema["precision"]
    wanted = f'a decimal with at most {precision} digits, {scale} of them after the point, such as "12.50"'

    def convert(value: Any, path: str) -> Any:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                found = Decimal(str(value))
            except InvalidOperation:
                pass
            else:
                if found == 0:
                    return Decimal()
                if found.is_finite() and _fits(found.as_tuple(), scale, precision):
                    return found
        raise wrong_value(path, value, wanted)

    return convert


def _fits(number: DecimalTuple, scale: int, precision: int) -> bool:
    """Whether the number has at most `scale` digits after the point, and `precision` digits with this scale.

    It is not computed, because fastavro's power of ten takes forever for a number such as 1e999999999.
    """
    assert isinstance(number.exponent, int)
    return number.exponent >= -scale and len(number.digits) + number.exponent + scale <= precision


_INT = _number(-(2**31), 2**31 - 1, "an integer of 32 bits")
_LONG = _number(-(2**63), 2**63 - 1, "an integer of 64 bits")
_PRIMITIVE: dict[str, Convert] = {
    "null": _null,
    "boolean": _boolean,
    "int": _INT,
    "long": _LONG,
    "float": _float,
    "double": _float,
    "bytes": _bytes,
    "string": _string,
}
_TIMESTAMP = _iso(_LONG, datetime.fromisoformat, "a time with its zone, such as 2026-01-31T12:00:00Z", has_zone=True)
_LOCAL = _iso(_LONG, datetime.fromisoformat, "a time without a zone, such as 2026-01-31T12:00:00", has_zone=False)
_TIME_OF_DAY = "a time of day, such as 12:00:00"
#: The logical types that fastavro converts, except decimals.
_LOGICAL: dict[tuple[str, str], Convert] = {
    ("int", "date"): _iso(_INT, date.fromisoformat, "a date, such as 2026-01-31"),
    ("int", "time-millis"): _iso(_INT, time.fromisoformat, _TIME_OF_DAY, has_zone=False),
    ("long", "time-micros"): _iso(_LONG, time.fromisoformat, _TIME_OF_DAY, has_zone=False),
    ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP,
    ("long", "local-timestamp-millis"): _LOCAL,
    ("long", "local-timestamp-micros"): _LOCAL,
    ("string", "uuid"): _uuid,
}
