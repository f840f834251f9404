"""BodyEncoding: what a write's column `value` becomes. The way back from bodies as columns.

    json        null fields of structs are left out; numbers, times, binary as they are read (`json_bodies`)
    avro        by a schema, whose fields the value's are found in by name
    protobuf    by a message of a descriptor set; null fields are left out
    string      text in UTF-8

With a schema registry bodies begin as Confluent's serializers write them. A schema that the options have is registered
there (auto.register.schemas, default true) or looked up, when the write is planned; without one the subject's is taken.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from gantrymq.errors import CodecError, ConfigError, IllegalMessage
from gantrymq.spark.bodies.body_format import VALUE, BodyFormat, BodyOptions
from gantrymq.spark.bodies.confluent import encode_indexes, prefix
from gantrymq.spark.bodies.json_bodies import json_decoder
from gantrymq.spark.bodies.registry import RegisteredSchema, SchemaRegistry

if TYPE_CHECKING:
    from gantrymq.spark.option_values import Values

AUTO_REGISTER = "auto.register.schemas"

#: A value as Arrow gives it to a body. Raises IllegalMessage.
EncodeValue = Callable[[Any], bytes]
Convert = Callable[[Any], Any]

#: What may be written where the schema has something wider.
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
    """What bodies are made as; `body` are the options that a read has, too. `schema_id` is 0 without a registry."""

    body: BodyOptions
    schema_id: int = 0

    @classmethod
    def parse(cls, values: Values, topic: str | None) -> BodyEncoding | None:
        """None without a bodyFormat. Asks the registry. Raises ConfigError, ClientError."""
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
        return cls(body, SchemaRegistry(body.registry).id_of(subject, schema, register=register))

    def check(self, kind: DataType) -> None:
        """Raises ConfigError for a type of the column `value` that these bodies can't have."""
        if self.body.format is BodyFormat.JSON:
            from gantrymq.spark.versions import to_arrow_schema

            # What is written can be read.
            json_decoder(to_arrow_schema(StructType().add(VALUE, kind)).field(VALUE).type)
            return
        _check_type(kind, self.body.type_of(None), VALUE)

    def encoder(self, kind: pa.DataType) -> EncodeValue:
        """For values of a column of that type."""
        before, to_bytes = self._before(), self._to_bytes(kind)

        def encode(value: Any) -> bytes:
            if value is None:
                raise IllegalMessage("the column value is null, and no message is without a body")
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
        from gantrymq.spark.bodies.registered import file_of

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
    """From pyarrow's Python values, which have maps as pairs, to dictionaries."""
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


def _check_type(given: DataType, wanted: DataType, place: str) -> None:
    """Fields that the schema has and the value hasn't are the encoder's: they may have defaults."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        kinds = {field.name: field.dataType for field in wanted.fields}
        for field in given.fields:
            if field.name not in kinds:
                raise ConfigError(f"{place}.{field.name} is not in the schema of bodies, which has {', '.join(kinds)}")
            _check_type(field.dataType, kinds[field.name], f"{place}.{field.name}")
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        _check_type(given.elementType, wanted.elementType, f"{place}[]")
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        _check_type(given.keyType, wanted.keyType, f"{place}[]")
        _check_type(given.valueType, wanted.valueType, f"{place}[]")
    else:
        names = given.simpleString(), wanted.simpleString()
        if names[0] != names[1] and names not in _WIDER:
            raise ConfigError(f"{place} is {names[0]}, and {names[1]} in the schema of bodies: cast it")


def _registry_text(body: BodyOptions) -> str:
    """The options' schema as it is registered."""
    if body.format is BodyFormat.AVRO:
        return body.schema_text()
    from gantrymq.spark.bodies.registered import file_of

    file, _ = file_of(body.schema, body.message)
    if others := [name for name in file.dependency if not name.startswith("google/protobuf/")]:
        raise ConfigError(
            f"{file.name} imports {', '.join(others)}: register it with its references, and leave out bodySchemaFile"
        )
    return base64.b64encode(file.SerializeToString()).decode()
