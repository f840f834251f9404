"""BodyFormat and BodyOptions: how bodies become the column `value`, which type it has, and who decodes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructType

from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.decoding import ValueDecoder
from gantrymq.spark.bodies.json_bodies import json_decoder

if TYPE_CHECKING:
    from gantrymq.spark.option_values import Values

#: The column's name.
VALUE = "value"
#: What such a read may be given.
BODY_OPTIONS = ("bodyFormat", "bodySchema", "bodySchemaFile")


class BodyFormat(StrEnum):
    """What bodies are."""

    STRING = "string"
    JSON = "json"


@dataclass(slots=True, frozen=True)
class BodyOptions:
    """What bodies are, and the text of their schema where the options have one.

    bodyFormat      string: text in UTF-8; json
    bodySchema      of json: the fields as in DDL, `id BIGINT NOT NULL, items ARRAY<STRUCT<name: STRING>>`; what is `not
                    null` must be there. Not needed where the read's own schema has the column `value`
    bodySchemaFile  instead: a file with that text, or Spark's JSON of a schema, which only the driver reads
    """

    format: BodyFormat
    schema: str | None = None

    @classmethod
    def parse(cls, values: Values) -> BodyOptions | None:
        """None without a bodyFormat. Raises ConfigError."""
        text = values.get("bodyFormat")
        values.exclude("bodySchema", "bodySchemaFile")
        schema = values.get("bodySchema")
        if (path := values.path("bodySchemaFile")) is not None:
            try:
                schema = path.read_text()
            except (OSError, ValueError) as e:
                raise ConfigError(f"option bodySchemaFile: can't read {path}: {e}") from e
        if text is None:
            if schema is not None:
                raise ConfigError("options bodySchema and bodySchemaFile have no meaning without bodyFormat")
            return None
        try:
            body_format = BodyFormat(text.lower())
        except ValueError:
            raise ConfigError(f"option bodyFormat: {text!r} is none of {', '.join(BodyFormat)}") from None
        if body_format is BodyFormat.STRING and schema is not None:
            raise ConfigError("options bodySchema and bodySchemaFile have no meaning with bodyFormat string")
        return cls(body_format, schema)

    def column_type(self) -> DataType | str:
        """The type of `value` where the read has no schema of its own; what only Spark can read is DDL.

        Raises ConfigError.
        """
        if self.format is BodyFormat.STRING:
            return StringType()
        if self.schema is None:
            raise ConfigError(
                f"bodyFormat {self.format} needs one of the options bodySchema and bodySchemaFile, "
                f'or .schema("..., {VALUE} STRUCT<...>")'
            )
        text = self.schema.strip()
        if not text.startswith("{"):
            return f"STRUCT<{text}>"
        try:
            return StructType.fromJson(json.loads(text))
        except (KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"the schema of bodies is neither DDL nor Spark's JSON of one: {e!r}") from e

    def type_of(self, asked: DataType | None) -> DataType:
        """The type that `value` has where `asked` is the one of the read's own schema, if that has it."""
        return asked if asked is not None and self.format is BodyFormat.JSON else StringType()

    def decoder(self, kind: pa.DataType) -> ValueDecoder:
        """For a column of this type. Raises ConfigError for one that such bodies can't have."""
        return ValueDecoder(_text if self.format is BodyFormat.STRING else json_decoder(kind), kind)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as e:
        raise CodecError(f"the body is no text in UTF-8: {e}") from e
