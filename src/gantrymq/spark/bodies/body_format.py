"""`BodyOptions`: the format of bodies, the type of the column `value`, and its decoder."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructType

from gantrymq.arrow.body_values import BodyFormat, DecodeBody, ValueDecoder
from gantrymq.arrow.columns import VALUE
from gantrymq.arrow.option_values import Values
from gantrymq.codecs.json_types import infer_fields
from gantrymq.codecs.registry.wire_format import split
from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.json_bodies import json_decoder
from gantrymq.spark.bodies.registry_options import REGISTRY_OPTIONS, URL, RegistryOptions

log = logging.getLogger(__name__)

#: The value of bodySchema with which a read derives the fields of JSON bodies from a sample of its messages.
INFER = "infer"
BODY_OPTIONS = ("bodyFormat", "bodySchema", "bodySchemaFile", "bodyMessage", *REGISTRY_OPTIONS)


@dataclass(slots=True, frozen=True)
class BodyOptions:
    """The format of bodies, and the schema of the bodies if the options contain one.

    Options:
        bodyFormat: `string` (UTF-8), `json`, `avro` (binary encoding without a header) or `protobuf`.
        bodySchema: For json, the fields as DDL: `id BIGINT NOT NULL, items ARRAY<STRUCT<name: STRING>>`. A body must
            have the fields that are `not null`. It is not required if the schema of the read has the column `value`.
            For avro, the JSON of the schema. With `infer`, for json in batch reads, the fields are those of a sample
            of about 1000 messages.
        bodySchemaFile: A file in place of `bodySchema`. For json, it can also have Spark's JSON of a schema. For
            protobuf, it is a descriptor set. Only the driver reads it.
        bodyMessage: For protobuf, the full name of the message.
        schema.registry.*: Bodies have the prefix of Confluent's serializers (`registry_options.RegistryOptions`). If
            the options have no schema, the registry supplies the schema of the subject.
    """

    format: BodyFormat
    schema: bytes = b""
    message: str = ""
    registry: RegistryOptions | None = None
    #: The id of the schema in the registry; 0 for a schema from the options.
    schema_id: int = 0

    @classmethod
    def parse(cls, values: Values, topics: Sequence[str] = ()) -> BodyOptions | None:
        """Parses the options; returns None without a bodyFormat.

        Requests the schema from the registry if necessary. Raises ConfigError for invalid options, and ClientError if
        the registry doesn't respond.
        """
        if values.get("bodyFormat") is None:
            given = [name for name in BODY_OPTIONS if name in values]
            if given:
                raise ConfigError(f"option {given[0]} has no meaning without bodyFormat")
            return None
        body_format = BodyFormat(values.choice("bodyFormat", BodyFormat, BodyFormat.STRING))
        for name in BODY_OPTIONS[1:]:
            if name in values and name not in _TAKES[body_format]:
                raise ConfigError(f"option {name} has no meaning with bodyFormat {body_format}")
        values.exclude("bodySchema", "bodySchemaFile")
        if values.get("bodySchema") == INFER:
            if body_format is not BodyFormat.JSON:
                raise ConfigError(f"option bodySchema: {INFER} needs bodyFormat json; {body_format} needs a schema")
            if URL in values:
                raise ConfigError(f"option bodySchema: {INFER} has no meaning with {URL}, which has the schema")
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
            # For json, only `column_type` needs the schema, and requests it.
            if body_format is not BodyFormat.JSON and not schema:
                from gantrymq.spark.bodies.registered import schema_of_subject

                schema, schema_id = schema_of_subject(registry, body_format)
            if body_format is BodyFormat.PROTOBUF and not message:
                from gantrymq.codecs.registry.protobuf_files import last_file, only_message

                message = only_message(last_file(schema), registry.connection.names)
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
        """Returns the type of `value` for a query without a schema. DDL is returned as text: only Spark can parse it.

        Raises ConfigError and CodecError for an invalid schema, and MissingExtra if a library is not installed.
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

    @property
    def is_inferred(self) -> bool:
        """Whether the fields of bodies are derived from a sample of the messages."""
        return self.format is BodyFormat.JSON and self.schema == INFER.encode()

    def with_sample(self, bodies: Collection[bytes], source: str) -> BodyOptions:
        """Returns the options with the fields of sampled bodies. Raises ClientError if the bodies have none.

        `source` is the origin of the sample in errors.
        """
        fields = infer_fields(bodies, source)
        for remark in fields.remarks:
            log.warning("bodySchema %s: %s", INFER, remark)
        return replace(self, schema=fields.ddl.encode())

    def type_of(self, asked: DataType | None) -> DataType:
        """Returns the type of `value`. `asked` is its type in the query's schema, or None if that lacks the column."""
        if self.format is BodyFormat.JSON:
            return StringType() if asked is None else asked
        kind = self._kind_and_decode()[0]
        # A DataFrame keeps its type even if the subject has a newer version in the meantime.
        return asked if asked is not None and self.schema_id and _is_part(asked, kind) else kind

    def decoder(self, kind: pa.DataType) -> ValueDecoder:
        """Returns a decoder for a column of this type. Raises ConfigError if the format doesn't support the type."""
        if self.format is not BodyFormat.JSON:
            return ValueDecoder(self._kind_and_decode()[1], kind)
        decode = json_decoder(kind)
        if self.registry is None:
            return ValueDecoder(decode, kind)
        names = self.registry.connection.names
        return ValueDecoder(lambda body: decode(split(body, names)[1]), kind)

    def _kind_and_decode(self) -> tuple[DataType, DecodeBody]:
        """Returns the type and the decoder, for the formats whose schema determines the type: all but json."""
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
        """Returns the schema as text. Raises ConfigError if it isn't UTF-8."""
        try:
            return self.schema.decode().strip()
        except UnicodeDecodeError as e:
            raise ConfigError(f"the schema of bodies is no text in UTF-8: {e}") from e


#: The options that a format accepts, besides bodyFormat.
_TAKES: dict[BodyFormat, Collection[str]] = {
    BodyFormat.STRING: (),
    BodyFormat.JSON: ("bodySchema", "bodySchemaFile", *REGISTRY_OPTIONS),
    BodyFormat.AVRO: ("bodySchema", "bodySchemaFile", *REGISTRY_OPTIONS),
    BodyFormat.PROTOBUF: ("bodySchemaFile", "bodyMessage", *REGISTRY_OPTIONS),
}


def _is_part(asked: DataType, of: DataType) -> bool:
    """Whether the type `of` has all fields of `asked`, with the same types."""
    if isinstance(asked, StructType) and isinstance(of, StructType):
        kinds = {field.name: field.dataType for field in of.fields}
        return all(field.name in kinds and _is_part(field.dataType, kinds[field.name]) for field in asked.fields)
    return asked.simpleString() == of.simpleString()


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as e:
        raise CodecError(f"the body is no text in UTF-8: {e}") from e
