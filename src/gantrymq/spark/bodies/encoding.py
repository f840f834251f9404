"""`BodyEncoding` encodes the column `value` of a write as bodies.

| format | encoding |
|---|---|
| json | numbers, times and binary as in `json_bodies`; null fields of structs are omitted |
| avro | by a schema; fields are matched by name |
| protobuf | by a message of a descriptor set; null fields are omitted |
| string | UTF-8 |

With a schema registry, bodies have the prefix of Confluent's serializers. If the options of a write have a schema, the
write registers this schema during planning. If auto.register.schemas is false (default: true), the schema must already
exist in the registry. A write without a schema uses the schema of the subject.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from gantrymq.arrow.body_values import BodyFormat, EncodeValue
from gantrymq.arrow.columns import VALUE
from gantrymq.arrow.option_values import Values
from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry
from gantrymq.codecs.registry.wire_format import encode_indexes, prefix
from gantrymq.errors import CodecError, ConfigError, IllegalMessage
from gantrymq.spark.bodies.body_format import BodyOptions
from gantrymq.spark.bodies.json_bodies import json_decoder
from gantrymq.spark.versions import to_arrow_schema

AUTO_REGISTER = "auto.register.schemas"

Convert = Callable[[Any], Any]

#: Pairs (type of the column, type in the schema) that a write accepts, because the column's type is narrower.
_WIDER = {
    ("tinyint", "int"),
    ("tinyint", "bigint"),
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
}
_JSON = msgspec.json.Encoder(decimal_format="number")


@dataclass(slots=True, frozen=True)
class BodyEncoding:
    """The encoding of bodies in a write.

    Attributes:
        body: The options that reads and writes share.
        schema_id: The id of the schema in the registry; 0 without a registry.
    """

    body: BodyOptions
    schema_id: int = 0

    @classmethod
    def parse(cls, values: Values, topic: str | None) -> BodyEncoding | None:
        """Parses the options; returns None without a bodyFormat.

        With a registry, registers or requests the schema. Raises ConfigError for invalid options, and ClientError if
        the registry doesn't respond.
        """
        body = BodyOptions.parse(values, () if topic is None else (topic,))
        register = values.flag(AUTO_REGISTER, True)
        if AUTO_REGISTER in values and (body is None or body.registry is None or body.schema_id or not body.schema):
            raise ConfigError(f"option {AUTO_REGISTER} has no meaning without a schema of your own and a registry")
        if body is None:
            return None
        if body.format is BodyFormat.JSON and body.schema:
            raise ConfigError("a schema has no meaning in a write with bodyFormat json: the column value has its type")
        if body.registry is None:
            return cls(body)
        if body.format is BodyFormat.JSON:
            from gantrymq.spark.bodies.registered import schema_of_subject

            return cls(body, schema_of_subject(body.registry, body.format)[1])
        if body.schema_id:
            return cls(body, body.schema_id)
        schema = RegisteredSchema(_registry_text(body), body.format.upper())
        subject = body.registry.required_subject()
        return cls(body, SchemaRegistry(body.registry.connection).id_of(subject, schema, register=register))

    def check(self, kind: DataType) -> None:
        """Raises ConfigError if bodies can't be encoded from a column `value` of this type."""
        if self.body.format is BodyFormat.JSON:
            # Only called for its check: it raises ConfigError for types that JSON bodies don't support.
            json_decoder(to_arrow_schema(StructType().add(VALUE, kind)).field(VALUE).type)
            return
        _check_type(kind, self.body.type_of(None), VALUE)

    def encoder(self, kind: pa.DataType) -> EncodeValue:
        """Returns an encoder for the values of a column of this type."""
        before, to_bytes = self._before(), self._to_bytes(kind)

        def encode(value: Any) -> bytes:
            if value is None:
                raise IllegalMessage("the column value is null, but a message needs a body")
            try:
                return before + to_bytes(value)
            except CodecError as e:
                raise IllegalMessage(f"column value: {e}") from e

        return encode

    def _before(self) -> bytes:
        if not self.schema_id:
            return b""
        if self.body.format is not BodyFormat.PROTOBUF:
            return prefix(self.schema_id)
        from gantrymq.codecs.registry.protobuf_files import file_of

        return prefix(self.schema_id) + encode_indexes(file_of(self.body.schema, self.body.message)[1])

    def _to_bytes(self, kind: pa.DataType) -> EncodeValue:
        if self.body.format is BodyFormat.STRING:
            return str.encode
        if self.body.format is BodyFormat.PROTOBUF:
            from gantrymq.spark.bodies.protobuf_messages import protobuf_encoder

            return protobuf_encoder(self.body.schema, self.body.message)
        is_json = self.body.format is BodyFormat.JSON
        convert = _converter(kind, leaves_out_nulls=is_json)
        if is_json:
            return lambda value: _JSON.encode(convert(value))
        from gantrymq.spark.bodies.avro_bodies import avro_codec

        codec = avro_codec(self.body.schema_text())
        return lambda value: codec.encode(convert(value))


def _converter(kind: pa.DataType, *, leaves_out_nulls: bool) -> Convert:
    """Returns a function that converts pyarrow's Python values for the encoders. Maps become dictionaries."""
    if types.is_struct(kind):
        fields = [(field.name, _converter(field.type, leaves_out_nulls=leaves_out_nulls)) for field in kind]
        if leaves_out_nulls:
            return lambda value: {name: of(value[name]) for name, of in fields if value[name] is not None}
        return lambda value: {name: None if value[name] is None else of(value[name]) for name, of in fields}
    if types.is_list(kind):
        of_item = _converter(kind.value_type, leaves_out_nulls=leaves_out_nulls)
        return lambda value: [None if item is None else of_item(item) for item in value]
    if types.is_map(kind):
        of_value = _converter(kind.item_type, leaves_out_nulls=leaves_out_nulls)
        return lambda value: {key: None if item is None else of_value(item) for key, item in value}
    return lambda value: value


def _check_type(given: DataType, wanted: DataType, path: str) -> None:
    """Raises ConfigError if the column type `given` doesn't fit the schema type `wanted`.

    Missing fields are no error here, because they may have defaults. The encoder checks for them.
    """
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        kinds = {field.name: field.dataType for field in wanted.fields}
        for field in given.fields:
            if field.name not in kinds:
                raise ConfigError(f"{path}.{field.name} is not in the schema of bodies, which has {', '.join(kinds)}")
            _check_type(field.dataType, kinds[field.name], f"{path}.{field.name}")
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        _check_type(given.elementType, wanted.elementType, f"{path}[]")
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        _check_type(given.keyType, wanted.keyType, f"{path}[]")
        _check_type(given.valueType, wanted.valueType, f"{path}[]")
    else:
        names = given.simpleString(), wanted.simpleString()
        if names[0] != names[1] and names not in _WIDER:
            raise ConfigError(f"{path} is {names[0]}, and {names[1]} in the schema of bodies: cast it")


def _registry_text(body: BodyOptions) -> str:
    """Returns the schema of the options in the registry's format."""
    if body.format is BodyFormat.AVRO:
        return body.schema_text()
    from gantrymq.codecs.registry.protobuf_files import file_of

    file, _ = file_of(body.schema, body.message)
    if others := [name for name in file.dependency if not name.startswith("google/protobuf/")]:
        raise ConfigError(
            f"{file.name} imports {', '.join(others)}: register it with its references, and leave out bodySchemaFile"
        )
    return base64.b64encode(file.SerializeToString()).decode()
