"""Parses and checks the options of `format("rocketmq")`.

`arrow.options` has all options except the options of body formats. Spark passes option names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gantrymq.arrow import options as arrow_options
from gantrymq.arrow.option_values import comma_list
from gantrymq.spark.bodies.body_format import BODY_OPTIONS, BodyOptions
from gantrymq.spark.bodies.encoding import AUTO_REGISTER, BodyEncoding
from gantrymq.spark.option_values import QueryValues

#: The option with the columns of a read without a schema.
COLUMNS = "columns"
READ_OPTIONS = (*arrow_options.READ_OPTIONS, COLUMNS, *BODY_OPTIONS)
WRITE_OPTIONS = (*arrow_options.WRITE_OPTIONS, *BODY_OPTIONS, AUTO_REGISTER)


@dataclass(slots=True, frozen=True)
class ReadOptions(arrow_options.ReadOptions):
    """The options of a read in Spark.

    Options:
        columns: The columns of the read, separated by commas. The others cost nothing. It excludes `.schema(...)`.
        bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*: Decode bodies into the column `value`
            (`bodies.body_format.BodyOptions`).
        Others: As in `arrow.options.ReadOptions`.
    """

    body: BodyOptions | None = None
    #: Empty for the default columns.
    columns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
        """Parses the options of a stream (`streaming` True), of a batch (False) or of either (None).

        Raises ConfigError for an unknown or invalid option, and for an option that this kind of read does not have.
        """
        values = QueryValues(options, READ_OPTIONS, "read", WRITE_OPTIONS)
        parsed = cls.of(values, streaming=streaming)
        columns = tuple(comma_list(values.get(COLUMNS) or ""))
        return replace(parsed, body=BodyOptions.parse(values, parsed.topics), columns=columns)


@dataclass(slots=True, frozen=True)
class WriteOptions(arrow_options.WriteOptions):
    """The options of a write in Spark.

    Options:
        bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*, auto.register.schemas: Encode the
            column `value`, which replaces `body` (`bodies.encoding.BodyEncoding`).
        Others: As in `arrow.options.WriteOptions`.
    """

    body: BodyEncoding | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> WriteOptions:
        """Parses the options of a stream (`streaming` True), of a batch (False) or of either (None).

        Raises ConfigError for an unknown or invalid option, and for an option that this kind of write does not have.
        """
        values = QueryValues(options, WRITE_OPTIONS, "write", READ_OPTIONS)
        parsed = cls.of(values, streaming=streaming)
        return replace(parsed, body=BodyEncoding.parse(values, parsed.topic))
