"""Derives Spark's DDL from sampled JSON bodies. `infer_fields` is the entry point.

| JSON | DDL |
|---|---|
| true, false | BOOLEAN |
| integers | BIGINT; DECIMAL(38,0) if one of them needs more than 64 bits |
| numbers with a fraction or an exponent, also among integers | DOUBLE |
| strings | STRING |
| arrays | ARRAY |
| objects | STRUCT; MAP<STRING, STRING> if none has a field |
| only null | STRING |
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum, auto
from typing import Any, NamedTuple

from gantrymq.errors import ClientError

_MOST_BIGINT = 2**63
#: Values in deeper arrays and objects are not examined, so that a deeply nested body causes no deep recursion.
_MAX_DEPTH = 100
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: The number of messages that a sample has by default.
DEFAULT_SAMPLE = 1000


class InferredFields(NamedTuple):
    """The fields of sampled bodies, as the option bodySchema has them: `id BIGINT, tags ARRAY<STRING>`.

    `remarks` describes the bodies and the values that the types do not fit.
    """

    ddl: str
    remarks: list[str]


def infer_fields(bodies: Iterable[bytes], source: str) -> InferredFields:
    """Derives the fields of JSON bodies. See `FieldInference`."""
    inference = FieldInference(source)
    for body in bodies:
        inference.add(body)
    return inference.result()


class FieldInference:
    """Derives the fields of JSON bodies, which need not be in memory together.

    Args:
        source: The origin of the sample in errors, for example `topic 'orders'`.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._types = JsonTypes()
        self._count = 0
        self._others = 0
        self._left_out = 0

    def add(self, body: bytes) -> None:
        """Adds a body of the sample."""
        self._count += 1
        try:
            value = json.loads(body, object_pairs_hook=self._with_text_names)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self._types.add(value)
        else:
            self._others += 1

    def result(self) -> InferredFields:
        """Returns the fields. Raises ClientError if the sample is empty, or no body is a JSON object with fields."""
        if not self._count:
            raise ClientError(f"{self._source} has no message: its schema can't be inferred")
        if not (ddl := self._types.fields_ddl()):
            raise ClientError(f"none of {self._count} messages of {self._source} is a JSON object with fields")
        remarks = [f"{self._others} of {self._count} bodies are not JSON objects"] if self._others else []
        if self._left_out:
            remarks.append(f"{self._left_out} fields are left out, because their names are not Unicode text")
        return InferredFields(ddl, remarks + [f"several types in {field}" for field in self._types.mixed()])

    def _with_text_names(self, fields: list[tuple[str, Any]]) -> dict[str, Any]:
        found = {name: value for name, value in fields if _is_text(name)}
        self._left_out += len(dict(fields)) - len(found)
        return found


class _Kind(StrEnum):
    BOOLEAN = auto()
    NUMBER = auto()
    STRING = auto()
    ARRAY = auto()
    OBJECT = auto()


class JsonTypes:
    """The types of the values at one path of the sampled bodies, and of their nested values."""

    def __init__(self) -> None:
        self._kinds: Counter[_Kind] = Counter()
        self._has_fraction = False
        self._is_large = False
        self._fields: dict[str, JsonTypes] = {}
        self._items: JsonTypes | None = None

    def add(self, value: Any, depth: int = 0) -> None:
        """Adds a decoded JSON value, which is in `depth` arrays and objects."""
        match value:
            case None:
                return
            case bool():
                self._kinds[_Kind.BOOLEAN] += 1
            case int() | float():
                self._kinds[_Kind.NUMBER] += 1
                self._has_fraction |= isinstance(value, float)
                self._is_large |= not -_MOST_BIGINT <= value < _MOST_BIGINT
            case str():
                self._kinds[_Kind.STRING] += 1
            case list():
                self._kinds[_Kind.ARRAY] += 1
                if depth >= _MAX_DEPTH:
                    return
                self._items = self._items or JsonTypes()
                for item in value:
                    self._items.add(item, depth + 1)
            case dict():
                self._kinds[_Kind.OBJECT] += 1
                if depth >= _MAX_DEPTH:
                    return
                for name, item in value.items():
                    self._fields.setdefault(name, JsonTypes()).add(item, depth + 1)

    def fields_ddl(self) -> str:
        """Returns the fields of objects, as the option bodySchema has them: `id BIGINT, tags ARRAY<STRING>`."""
        return ", ".join(f"{_quoted(name)} {field.type_ddl()}" for name, field in self._fields.items())

    def type_ddl(self) -> str:
        """Returns the type. If values have several kinds, the most frequent kind counts."""
        if not self._kinds:
            return "STRING"
        match self._kinds.most_common(1)[0][0]:
            case _Kind.BOOLEAN:
                return "BOOLEAN"
            case _Kind.NUMBER:
                return "DOUBLE" if self._has_fraction else "DECIMAL(38,0)" if self._is_large else "BIGINT"
            case _Kind.STRING:
                return "STRING"
            case _Kind.ARRAY:
                return f"ARRAY<{'STRING' if self._items is None else self._items.type_ddl()}>"
            case _Kind.OBJECT:
                if not self._fields:
                    return "MAP<STRING, STRING>"
                inner = ", ".join(f"{_quoted(name)}: {field.type_ddl()}" for name, field in self._fields.items())
                return f"STRUCT<{inner}>"

    def mixed(self, path: str = "") -> Iterator[str]:
        """Yields a description of each field whose values have several kinds."""
        if len(self._kinds) > 1:
            yield f"{path}: " + ", ".join(f"{count} of type {kind}" for kind, count in self._kinds.most_common())
        if self._items is not None:
            yield from self._items.mixed(f"{path}[]")
        for name, field in self._fields.items():
            yield from field.mixed(f"{path}.{name}" if path else name)


def _is_text(name: str) -> bool:
    """Whether the name has an encoding. JSON can have half of a surrogate pair, such as `\\ud800`."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
