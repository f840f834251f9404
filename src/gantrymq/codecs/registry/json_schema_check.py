"""Checks JSON values against a JSON Schema, with an error that names the field.

It checks `type`, `properties`, `required`, `additionalProperties`, `items`, `enum`, `const`, `allOf`, `anyOf`, `oneOf`
and `$ref`. It ignores other keywords, such as `format` and `minimum`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

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


class JsonSchemaCheck:
    """Checks values against one schema.

    Args:
        schema: The parsed schema.
        others: The parsed schemas of its references, by name.
    """

    def __init__(self, schema: Any, others: Mapping[str, Any]) -> None:
        self._schema = schema
        self._others = others

    def __call__(self, value: Any) -> None:
        """Raises CodecError if the value doesn't match the schema."""
        try:
            self._check(self._schema, self._schema, value, "")
        except RecursionError as e:
            raise CodecError("the value or the schema is nested too deeply") from e
        except (AttributeError, TypeError, KeyError) as e:
            raise CodecError(f"the JSON Schema in the registry is invalid ({e!r}): register a valid schema") from e

    def _check(self, schema: Any, root: Any, value: Any, path: str) -> None:
        if schema is True:
            return
        if schema is False:
            raise CodecError(f"{_named(path)} is not allowed by the schema: remove it")
        if (reference := schema.get("$ref")) is not None:
            self._check(*self._referenced(reference, root), value, path)
        self._check_value(schema, value, path)
        for branch in schema.get("allOf", ()):
            self._check(branch, root, value, path)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                self._check_choice(name, schema[name], root, value, path)
        if isinstance(value, dict):
            self._check_object(schema, root, value, path)
        elif isinstance(value, list) and isinstance(items := schema.get("items", True), dict | bool):
            for number, item in enumerate(value):
                self._check(items, root, item, f"{path}[{number}]")

    def _check_value(self, schema: dict[str, Any], value: Any, path: str) -> None:
        if (kinds := schema.get("type")) is not None:
            kinds = kinds if isinstance(kinds, list) else [kinds]
            if not any(_IS[kind](value) for kind in kinds):
                raise _wrong(path, value, f"a value of type {' or '.join(kinds)}")
        if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
            raise _wrong(path, value, f"one of {', '.join(map(_json_text, schema['enum']))}")
        if "const" in schema and not _same(value, schema["const"]):
            raise _wrong(path, value, _json_text(schema["const"]))

    def _check_choice(self, name: str, branches: list[Any], root: Any, value: Any, path: str) -> None:
        problems, matches = list[CodecError](), 0
        for branch in branches:
            try:
                self._check(branch, root, value, path)
                matches += 1
            except CodecError as e:
                problems.append(e)
        if matches == 0:
            # An optional field is a choice of null and a type: the error of the type is the useful one.
            raise problems[-1] if len(branches) <= 2 and problems else _wrong(path, value, f"a value of its {name}")
        if name == "oneOf" and matches > 1:
            raise _wrong(path, value, f"a value that matches one schema of oneOf, not {matches}")

    def _check_object(self, schema: dict[str, Any], root: Any, value: dict[str, Any], path: str) -> None:
        within = f"{path}." if path else ""
        properties = schema.get("properties", {})
        for key in schema.get("required", ()):
            if key not in value:
                raise CodecError(f"field {within}{key} is missing: add it, because the schema requires it")
        more = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for key, part in value.items():
            if key not in properties and more is False:
                names = ", ".join(properties)
                raise CodecError(f"field {within}{key} is not in the schema: it has {names or 'no fields'}")
            self._check(properties.get(key, more), root, part, f"{within}{key}")

    def _referenced(self, reference: str, root: Any) -> tuple[Any, Any]:
        """Returns the schema of a reference, and the document with this schema."""
        name, _, pointer = reference.partition("#")
        if name:
            if name not in self._others:
                raise CodecError(f"the schema refers to {name}: register it with this reference")
            root = self._others[name]
        found = root
        for part in pointer.split("/")[1:]:
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found, root


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal. In Python, True equals 1."""
    return bool(value == other) and isinstance(value, bool) is isinstance(other, bool)


def _named(path: str) -> str:
    return f"field {path}" if path else "the value"


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else f"{text[:50]}..."


def _wrong(path: str, value: Any, wanted: str) -> CodecError:
    return CodecError(f"{_named(path)} is {_json_text(value)}: write {wanted}")
