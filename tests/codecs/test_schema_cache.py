"""Tests of `SchemaCache`."""

from __future__ import annotations

import pytest

from gantrymq.codecs.registry.client import UNKNOWN_FOR_S, RegisteredSchema
from gantrymq.codecs.registry.schema_cache import SchemaCache
from gantrymq.errors import CodecError


class Schemas:
    """The schemas of a registry, and the ids that were requested and built."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.loaded: list[int] = []
        self.built: list[int] = []

    def load(self, schema_id: int) -> RegisteredSchema:
        self.loaded.append(schema_id)
        if schema_id not in self.texts:
            raise CodecError(f"no schema {schema_id}")
        return RegisteredSchema(self.texts[schema_id])

    def build(self, schema_id: int, schema: RegisteredSchema) -> str:
        self.built.append(schema_id)
        if not schema.text:
            raise CodecError("it is empty")
        return schema.text.upper()


def test_a_schema_is_built_once() -> None:
    schemas = Schemas()
    schemas.texts[1] = "a"
    cache = SchemaCache(schemas.load, schemas.build)
    assert cache.cached(1) is None
    assert [cache.get(1, 0.0), cache.get(1, 1e9), cache.cached(1)] == ["A"] * 3
    assert schemas.built == [1]


def test_an_unusable_schema_is_built_again_after_a_time() -> None:
    schemas = Schemas()
    schemas.texts[1] = ""
    cache = SchemaCache(schemas.load, schemas.build)
    errors = []
    for now in (0.0, UNKNOWN_FOR_S - 1):
        with pytest.raises(CodecError, match="schema 1, which the body names, can't be used: it is empty") as found:
            cache.get(1, now)
        errors.append(found.value)
    # Tracebacks of several callers must not collect in one error.
    assert errors[0] is not errors[1]
    assert schemas.built == [1]
    schemas.texts[1] = "a"
    assert cache.get(1, UNKNOWN_FOR_S) == "A"


def test_an_unknown_id_is_requested_again() -> None:
    schemas = Schemas()
    cache = SchemaCache(schemas.load, schemas.build)
    with pytest.raises(CodecError, match=r"^no schema 1$"):
        cache.get(1, 0.0)
    schemas.texts[1] = "a"
    assert cache.get(1, 0.0) == "A"
    assert schemas.loaded == [1, 1]
