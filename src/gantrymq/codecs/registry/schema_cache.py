"""`SchemaCache` keeps what a reader builds from the schemas that bodies name, such as their codecs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gantrymq.background.shared_task import own_copy
from gantrymq.codecs.registry.client import MAX_CACHED, UNKNOWN_FOR_S, RegisteredSchema
from gantrymq.errors import CodecError

T = TypeVar("T")


class SchemaCache(Generic[T]):
    """Caches the values that `build` returns, by the id of the schema. `cached` is thread-safe, `get` is not.

    If a schema can't be used, the error is cached for UNKNOWN_FOR_S. Afterwards, a schema to which it refers may have
    been registered. Unknown ids are not cached here, because `SchemaRegistry` limits requests for unknown ids.

    Args:
        load: Returns the schema of an id. Raises CodecError for an unknown id.
        build: Returns the value for an id and its schema. Raises CodecError for a schema that can't be used.
    """

    def __init__(self, load: Callable[[int], RegisteredSchema], build: Callable[[int, RegisteredSchema], T]) -> None:
        self._load = load
        self._build = build
        self._built: dict[int, T] = {}
        #: The reason why a schema can't be used, and the time until which it is not checked again.
        self._unusable: dict[int, tuple[CodecError, float]] = {}

    def cached(self, schema_id: int) -> T | None:
        """Returns the value for an id if it is cached."""
        return self._built.get(schema_id)

    def get(self, schema_id: int, now: float) -> T:
        """Returns the value for an id. `now` is in seconds of a monotonic clock.

        Raises CodecError, and the errors of `load` and `build`.
        """
        found = self._built.get(schema_id)
        if found is not None:
            return found
        if (unusable := self._unusable.get(schema_id)) is not None and now < unusable[1]:
            raise own_copy(unusable[0])
        schema = self._load(schema_id)
        try:
            built = self._build(schema_id, schema)
        except CodecError as e:
            problem = CodecError(f"schema {schema_id}, which the body names, can't be used: {e}")
            _put(self._unusable, schema_id, (problem, now + UNKNOWN_FOR_S))
            raise problem from e
        _put(self._built, schema_id, built)
        return built


V = TypeVar("V")


def _put(cache: dict[int, V], schema_id: int, value: V) -> None:
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[schema_id] = value
