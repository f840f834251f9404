"""BodyFormat and BodyOptions: how bodies become the column `value`, which type it has, and who decodes it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructType

from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.confluent import split
from gantrymq.spark.bodies.decoding import DecodeBody, ValueDecoder
from gantrymq.spark.bodies.json_bodies import json_decoder
from gantrymq.spark.bodies.registry import REGISTRY_OPTIONS, RegistryOptions

if TYPE_CHECKING:
    from gantrymq.spark.option_values import Values

#: The column's name.
VALUE = "value"
#: What such a read may be given.
BODY_OPTIONS = ("bodyFormat", "bodySchema", "bodySchemaFile", "bodyMessage", *REGISTRY_OPTIONS)


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
    schema.registry.*   as `registry.RegistryOptions` has them: bodies are as Confluent's serializers write them, and
                    the subject's schema is asked for where the options have none
    """

    format: BodyFormat
    schema: bytes = b""
    message: str = ""
    registry: RegistryOptions | None = None
    #: Of a schema that the registry gave; else 0.
    schema_id: int = 0

    @classmethod
    def parse(cls, values: Values, topics: Sequence[str] = ()) -> BodyOptions | None:
        """None without a bodyFormat. Asks the registry where its schema is needed. Raises ConfigError, ClientError."""
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
        message = values.get("bodyMessage") or ""
        schema_id = 0
        registry = RegistryOptions.parse(values, topics)
        if registry is not None:
            # For json only `column_type` needs it.
            if body_format is not BodyFormat.JSON and not schema:
                from gantrymq.spark.bodies.registered import schema_of_subject

                schema, schema_id = schema_of_subject(registry, body_format)
            if body_format is BodyFormat.PROTOBUF and not message:
                from gantrymq.spark.bodies.registered import only_message

                message = only_message(schema)
        if body_format is BodyFormat.AVRO and not schema:
            raise ConfigError(
                "bodyFormat avro needs one of the options bodySchema, bodySchemaFile and schema.registry.url"
            )
        if body_format is BodyFormat.PROTOBUF and not (schema and message):
            raise ConfigError(
                "bodyFormat protobuf needs the options bodySchemaFile and bodyMessage, or schema.registry.url"
            )
        return cls(body_format, schema, message, registry, schema_id)

    def column_type(self) -> DataType | str:
        """The type of `value` where the read has no schema of its own; what only Spark can read is DDL.

        Raises ConfigError and CodecError for a schema that is none, and MissingExtra.
        """
        if self.format is not BodyFormat.JSON:
            return self._kind_and_decode()[0]
        if not self.schema:
            if self.registry is not None:
                return self._registered_json_type(self.registry)
            raise ConfigError(
                "bodyFormat json needs one of the options bodySchema, bodySchemaFile and schema.registry.url, "
                f'or .schema("..., {VALUE} STRUCT<...>")'
            )
        text = self.schema_text()
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
        kind = self._kind_and_decode()[0]
        # A DataFrame stays as it is when the subject gets another version.
        return asked if asked is not None and self.schema_id and _is_part(asked, kind) else kind

    def decoder(self, kind: pa.DataType) -> ValueDecoder:
        """For a column of this type. Raises ConfigError for one that such bodies can't have."""
        if self.format is not BodyFormat.JSON:
            return ValueDecoder(self._kind_and_decode()[1], kind)
        decode = json_decoder(kind)
        if self.registry is None:
            return ValueDecoder(decode, kind)
        return ValueDecoder(lambda body: decode(split(body)[1]), kind)

    def _kind_and_decode(self) -> tuple[DataType, DecodeBody]:
        """Of the formats whose schema says which type there is."""
        if self.format is BodyFormat.AVRO:
            from gantrymq.spark.bodies.avro_bodies import avro_bodies

            text = self.schema_text()
            kind, decode = avro_bodies(text)
            if self.registry is not None:
                from gantrymq.spark.bodies.registered import registered_avro

                decode = registered_avro(self.registry, text)
            return kind, decode
        if self.format is BodyFormat.PROTOBUF:
            from gantrymq.spark.bodies.protobuf_bodies import protobuf_bodies

            kind, decode = protobuf_bodies(self.schema, self.message)
            if self.registry is not None:
                from gantrymq.spark.bodies.registered import registered_protobuf

                of_file = self.registry, self.schema, self.message
                decode = registered_protobuf(*of_file, decode, is_registered=bool(self.schema_id))
            return kind, decode
        return StringType(), _text

    def _registered_json_type(self, registry: RegistryOptions) -> DataType:
        from gantrymq.spark.bodies.json_schema import type_of_json_schema
        from gantrymq.spark.bodies.registered import schema_of_subject

        return type_of_json_schema(schema_of_subject(registry, self.format)[0].decode())

    def schema_text(self) -> str:
        """The schema where it is text. Raises ConfigError."""
        try:
            return self.schema.decode().strip()
        except UnicodeDecodeError as e:
            raise ConfigError(f"the schema of bodies is no text in UTF-8: {e}") from e


#: Options besides bodyFormat.
_TAKES: dict[BodyFormat, Collection[str]] = {
    BodyFormat.STRING: (),
    BodyFormat.JSON: ("bodySchema", "bodySchemaFile", *REGISTRY_OPTIONS),
    BodyFormat.AVRO: ("bodySchema", "bodySchemaFile", *REGISTRY_OPTIONS),
    BodyFormat.PROTOBUF: ("bodySchemaFile", "bodyMessage", *REGISTRY_OPTIONS),
}


def _is_part(asked: DataType, of: DataType) -> bool:
    """Whether a type has nothing that the other hasn't."""
    if isinstance(asked, StructType) and isinstance(of, StructType):
        kinds = {field.name: field.dataType for field in of.fields}
        return all(field.name in kinds and _is_part(field.dataType, kinds[field.name]) for field in asked.fields)
    return asked.simpleString() == of.simpleString()


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as e:
        raise CodecError(f"the body is no text in UTF-8: {e}") from e
