"""BodyFormat and BodyOptions: how bodies become the column `value`, which type it has, and who decodes it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructType

from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.decoding import DecodeBody, ValueDecoder
from gantrymq.spark.bodies.json_bodies import json_decoder

if TYPE_CHECKING:
    from gantrymq.spark.option_values import Values

#: The column's name.
VALUE = "value"
#: What such a read may be given.
BODY_OPTIONS = ("bodyFormat", "bodySchema", "bodySchemaFile", "bodyMessage")


class BodyFormat(StrEnum):
    """What bodies are."""

    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(slots=True, frozen=True)
class BodyOptions:
    """What bodies are, and their schema where the options have one.

    bodyFormat      string: text in UTF-8; json; avro: the binary encoding, without a header; protobuf
    bodySchema      of json: the fields as in DDL, `id BIGINT NOT NULL, items ARRAY<STRUCT<name: STRING>>`; what is `not
                    null` must be there. Not needed where the read's own schema has the column `value`. Of avro: the
                    schema's JSON
    bodySchemaFile  instead: a file with that text, or for json Spark's JSON of a schema; for protobuf a descriptor set.
                    Only the driver reads it
    bodyMessage     of protobuf: the message's full name
    """

    format: BodyFormat
    schema: bytes = b""
    message: str = ""

    @classmethod
    def parse(cls, values: Values) -> BodyOptions | None:
        """None without a bodyFormat. Raises ConfigError."""
        text = values.get("bodyFormat")
        if text is None:
            given = [name for name in BODY_OPTIONS if name in values]
            if given:
                raise ConfigError(f"option {given[0]} has no meaning without bodyFormat")
            return None
        try:
            body_format = BodyFormat(text.lower())
        except ValueError:
            raise ConfigError(f"option bodyFormat: {text!r} is none of {', '.join(BodyFormat)}") from None
        for name in BODY_OPTIONS[1:]:
            if name in values and name not in _TAKES[body_format]:
                raise ConfigError(f"option {name} has no meaning with bodyFormat {body_format}")
        values.exclude("bodySchema", "bodySchemaFile")
        schema = (values.get("bodySchema") or "").encode()
        if (path := values.path("bodySchemaFile")) is not None:
            try:
                schema = path.read_bytes()
            except OSError as e:
                raise ConfigError(f"option bodySchemaFile: can't read {path}: {e.strerror or e}") from e
        if body_format is BodyFormat.AVRO and not schema:
            raise ConfigError("bodyFormat avro needs one of the options bodySchema and bodySchemaFile")
        message = values.get("bodyMessage") or ""
        if body_format is BodyFormat.PROTOBUF and not (schema and message):
            raise ConfigError("bodyFormat protobuf needs the options bodySchemaFile and bodyMessage")
        return cls(body_format, schema, message)

    def column_type(self) -> DataType | str:
        """The type of `value` where the read has no schema of its own; what only Spark can read is DDL.

        Raises ConfigError and CodecError for a schema that is none, and MissingExtra.
        """
        if self.format is not BodyFormat.JSON:
            return self._kind_and_decode()[0]
        if not self.schema:
            raise ConfigError(
                "bodyFormat json needs one of the options bodySchema and bodySchemaFile, "
                f'or .schema("..., {VALUE} STRUCT<...>")'
            )
        text = self._schema_text()
        if not text.startswith("{"):
            return f"STRUCT<{text}>"
        try:
            return StructType.fromJson(json.loads(text))
        except (KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"the schema of bodies is neither DDL nor Spark's JSON of one: {e!r}") from e

    def type_of(self, asked: DataType | None) -> DataType:
        """The type that `value` has where `asked` is the one of the read's own schema, if that has it."""
        if self.format is BodyFormat.JSON:
            return StringType() if asked is None else asked
        return self._kind_and_decode()[0]

    def decoder(self, kind: pa.DataType) -> ValueDecoder:
        """For a column of this type. Raises ConfigError for one that such bodies can't have."""
        decode = json_decoder(kind) if self.format is BodyFormat.JSON else self._kind_and_decode()[1]
        return ValueDecoder(decode, kind)

    def _kind_and_decode(self) -> tuple[DataType, DecodeBody]:
        """Of the formats whose schema says which type there is."""
        if self.format is BodyFormat.AVRO:
            from gantrymq.spark.bodies.avro_bodies import avro_bodies

            return avro_bodies(self._schema_text())
        if self.format is BodyFormat.PROTOBUF:
            from gantrymq.spark.bodies.protobuf_bodies import protobuf_bodies

            return protobuf_bodies(self.schema, self.message)
        return StringType(), _text

    def _schema_text(self) -> str:
        try:
            return self.schema.decode().strip()
        except UnicodeDecodeError as e:
            raise ConfigError(f"the schema of bodies is no text in UTF-8: {e}") from e


#: Options besides bodyFormat.
_TAKES: dict[BodyFormat, Collection[str]] = {
    BodyFormat.STRING: (),
    BodyFormat.JSON: ("bodySchema", "bodySchemaFile"),
    BodyFormat.AVRO: ("bodySchema", "bodySchemaFile"),
    BodyFormat.PROTOBUF: ("bodySchemaFile", "bodyMessage"),
}


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as e:
        raise CodecError(f"the body is no text in UTF-8: {e}") from e
