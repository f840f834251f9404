"""Checks JSON values against a JSON Schema, with an error that names the field.

It checks `type`, `properties`, `required`, `additionalProperties`, `items`, `enum`, `const`, `allOf`, `anyOf`, `oneOf`
and `$ref`. It ignores other keywords, such as `format` and `minimum`.
Decision record: docs/decisions/json-schema-check.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from gantrymq.codecs.registry.field_errors import json_text, listed, named, wrong_value
from gantrymq.errors import CodecError

_IS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


#: The limit for the number of checks of one value: this number, and more for each byte of the value. In a schema whose
#: parts refer to each other, the number can double with each reference.
_FREE_CHECKS = 100_000
_CHECKS_PER_BYTE = 20


class JsonSchemaCheck:
    """Checks values against one schema.

    Args:
        schema: The parsed schema.
        others: The parsed schemas of its references, by name.
    """

    def __init__(self, schema: Any, others: Mapping[str, Any]) -> None:
        self._schema = schema
        self._others = others

    def __call__(self, value: Any, size: int) -> None:
        """Checks a value whose JSON has `size` bytes. Raises CodecError if it doesn't match the schema."""
        try:
            _Check(self._others, _FREE_CHECKS + _CHECKS_PER_BYTE * size).check(self._schema, self._schema, value, "")
        except RecursionError as e:
            raise CodecError("the value or the schema is nested too deeply") from e
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
            raise CodecError(f"the JSON Schema in the registry is invalid ({e!r:.200}): register a valid schema") from e


class _TooManyChecks(CodecError):
    """Raised if a check exceeds its limit."""


class _Check:
    """The check of one value, which applies at most `limit` schemas."""

    def __init__(self, others: Mapping[str, Any], limit: int) -> None:
        self._others = others
        self._left = limit

    def check(self, schema: Any, root: Any, value: Any, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManyChecks("the JSON Schema in the registry takes too many checks: register a simpler schema")
        if schema is True:
            return
        if schema is False:
            raise CodecError(f"{named(path)} is not allowed by the schema: remove it")
        if (reference := schema.get("$ref")) is not None:
            self.check(*self._referenced(reference, root), value, path)
        self._check_value(schema, value, path)
        for branch in schema.get("allOf", ()):
            self.check(branch, root, value, path)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                self._check_choice(name, schema[name], root, value, path)
        if isinstance(value, dict):
            self._check_object(schema, root, value, path)
        elif isinstance(value, list) and isinstance(items := schema.get("items", True), dict | bool):
            for number, item in enumerate(value):
                self.check(items, root, item, f"{path}[{number}]")

    def _check_value(self, schema: dict[str, Any], value: Any, path: str) -> None:
        if (kinds := schema.get("type")) is not None:
            kinds = kinds if isinstance(kinds, list) else [kinds]
            if not any(_IS[kind](value) for kind in kinds):
                raise wrong_value(path, value, f"a value of type {' or '.join(kinds)}")
        if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
            raise wrong_value(path, value, f"one of {listed(map(json_text, schema['enum']))}")
        if "const" in schema and not _same(value, schema["const"]):
            raise wrong_value(path, value, json_text(schema["const"]))

    def _check_choice(self, name: str, branches: list[Any], root: Any, value: Any, path: str) -> None:
        problems, matches = list[CodecError](), 0
        for branch in branches:
            try:
                self.check(branch, root, value, path)
                matches += 1
            except _TooManyChecks:
                raise
            except CodecError as e:
                problems.append(e)
        if matches == 0:
            if problems and len(branches) <= 2:
                # An optional field is a choice of null and a type: the error of the type is the useful one.
                raise problems[-1]
            raise wrong_value(path, value, f"a value of its {name}")
        if name == "oneOf" and matches > 1:
            raise wrong_value(path, value, f"a value that matches one schema of oneOf, not {matches}")

    def _check_object(self, schema: dict[str, Any], root: Any, value: dict[str, Any], path: str) -> None:
        within = f"{path}." if path else ""
        properties = schema.get("properties", {})
        for key in schema.get("required", ()):
            if key not in value:
                raise CodecError(f"field {within}{key} is missing: add it, because the schema requires it")
        more = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for key, part in value.items():
            if key not in properties and more is False:
                names = listed(properties) or "no fields"
                raise CodecError(f"field {within}{key} is not in the schema: it has {names}")
            self.check(properties.get(key, more), root, part, f"{within}{key}")

    def _referenced(self, reference: str, root: Any) -> tuple[Any, Any]:
        """Returns the schema of a reference, and the document with this schema."""
        name, _, pointer = reference.partition("#")
        if name:
            if name not in self._others:
                raise CodecError(f"the schema refers to {name}: register it with this reference")
            root = self._others[name]
        if pointer and not pointer.startswith("/"):
            raise CodecError(f"the schema refers to {reference}: give the path of the definition, as in #/$defs/order")
        found = root
        for part in unquote(pointer).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found[int(part) if isinstance(found, list) else part]
        return found, root


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal. In Python, True equals 1."""
    return bool(value == other) and isinstance(value, bool) is isinstance(other, bool)
