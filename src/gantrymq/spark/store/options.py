"""Parses and checks the options of `format("rocketmq-store")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gantrymq.arrow.store import options as arrow_options
from gantrymq.spark.bodies.body_format import BODY_OPTIONS, BodyOptions
from gantrymq.spark.option_values import QueryValues
from gantrymq.spark.options import READ_OPTIONS, WRITE_OPTIONS

STORE_OPTIONS = (*arrow_options.STORE_OPTIONS, *BODY_OPTIONS)


@dataclass(slots=True, frozen=True)
class StoreOptions(arrow_options.StoreOptions):
    """The options of a read of a store's files in Spark.

    Options:
        bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*: As for `format("rocketmq")`.
        Others: As in `arrow.store.options.StoreOptions`. The path is the argument of `load`.
    """

    body: BodyOptions | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StoreOptions:
        """Parses the options. Raises ConfigError for an unknown or invalid option."""
        values = QueryValues(options, STORE_OPTIONS, "read of a store", (*READ_OPTIONS, *WRITE_OPTIONS))
        parsed = cls.of(values)
        return replace(parsed, body=BodyOptions.parse(values, sorted(parsed.topics)))
