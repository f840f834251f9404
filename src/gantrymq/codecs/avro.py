"""Avro codec based on fastavro: binary encoding without a header. Needs the extra `gantrymq[avro]`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Self

from gantrymq.codecs.avro_check import avro_check
from gantrymq.codecs.codec import Codec, undecodable, unencodable
from gantrymq.errors import CodecError
from gantrymq.extras import missing

try:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer
except ImportError as e:
    raise missing("avro", "gantrymq.codecs.avro", e) from e


class AvroCodec(Codec[Any]):
    """Encodes values of an Avro schema. A record is a dictionary.

    The bytes do not contain the schema, so both sides need it. Logical types become Python types: datetime, Decimal,
    UUID.

    Args:
        schema: Decoded JSON of the schema that writes values.
        reader: Another schema, to which values are converted when they are read (Avro's schema resolution).

    Raises:
        CodecError: The schema is invalid, or has arrays whose items take no bytes, or records with more than 100 fields
            that take no bytes, so that a few bytes could encode any number of values.
    """

    content_type = "application/avro"

    def __init__(
        self, schema: dict[str, Any] | list[Any] | str, *, reader: dict[str, Any] | list[Any] | str | None = None
    ) -> None:
        try:
            self._schema = parse_schema(schema)
            self._reader = None if reader is None else parse_schema(reader)
            self._check = avro_check(self._schema)
        except CodecError:
            raise
        except Exception as e:
            raise CodecError(f"no Avro schema: {type(e).__name__}: {e}") from e
        self._name = schema["name"] if isinstance(schema, dict) and "name" in schema else "value"

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Returns a codec with the schema of an .avsc file. Raises CodecError or OSError."""
        try:
            schema = json.loads(path.read_bytes())
        except ValueError as e:
            raise CodecError(f"{path} is no JSON, and so no Avro schema: {e}") from e
        try:
            return cls(schema)
        except CodecError as e:
            raise CodecError(f"{path}: {e}") from e

    def encode(self, value: Any) -> bytes:
        data = io.BytesIO()
        try:
            schemaless_writer(data, self._schema, value)
        except Exception as e:
            raise unencodable(f"Avro's {self._name}", value, e) from e
        return data.getvalue()

    def decode(self, data: bytes) -> Any:
        try:
            self._check(data)
        except CodecError as e:
            raise CodecError(f"no {self._name} of this Avro schema: {e}") from e
        source = io.BytesIO(data)
        try:
            value = schemaless_reader(source, self._schema, self._reader)
        except Exception as e:
            raise undecodable(f"{self._name} of this Avro schema", e) from e
        # A body of another schema can be decodable by chance. Remaining bytes are a sign of another schema.
        if source.tell() != len(data):
            raise CodecError(
                f"no {self._name} of this Avro schema: {len(data) - source.tell()} of {len(data)} bytes are left over"
            )
        return value
