"""`RegistryCodec` encodes and decodes bodies with the schemas of a registry. Needs `gantrymq[registry]`."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gantrymq.codecs.codec import Codec
from gantrymq.codecs.registry.client import MAX_CACHED, SchemaRegistry
from gantrymq.codecs.registry.schema_codecs import SchemaCodec, schema_codec
from gantrymq.codecs.registry.settings import RegistrySettings, split_urls
from gantrymq.codecs.registry.wire_format import prefix, split
from gantrymq.errors import CodecError, ConfigError
from gantrymq.protocol.message import MessageExt


class RegistryCodec(Codec[Any]):
    """Encodes values with the latest schema of a subject, and decodes bodies with the schema whose id they have.

    Bodies have the format of Confluent's serializers. Schemas are Avro, JSON Schema or protobuf. Avro records and JSON
    objects are dictionaries. `decode` returns a protobuf message; `encode` also takes a dictionary in protobuf's JSON
    mapping. JSON values are checked against the JSON Schema when they are encoded (`json_schema_check`).

    The codec requests a schema once. `load` requests the schema of the subject; otherwise the first `encode` does, and
    blocks its thread. A codec keeps this version. Thread-safe.

    Args:
        registry: The address, such as `http://host:8081`. Instances of one registry are separated by commas. For
            credentials, TLS files and timeouts, give `RegistrySettings`.
        subject: The subject of the schema, usually `TOPIC-value`. Only `encode` needs it.
        message: The full name of the protobuf message to encode. Not required if the file has one message.

    Raises:
        ConfigError: An argument is invalid.

    Example:
        orders = RegistryCodec("http://127.0.0.1:8081", subject="orders-value")
        await asyncio.to_thread(orders.load)
        await producer.send(orders.message("orders", {"what": "apples", "count": 42}))
    """

    #: Not `application/json` or `application/avro`, because bodies begin with the prefix.
    content_type = "application/octet-stream"

    def __init__(
        self, registry: str | RegistrySettings, *, subject: str | None = None, message: str | None = None
    ) -> None:
        settings = RegistrySettings(split_urls(registry)) if isinstance(registry, str) else registry
        self._registry = SchemaRegistry(settings)
        self._names = settings.names
        self._subject = subject
        self._message = message
        #: The codec and the id of the subject's schema. None until it is loaded.
        self._of_subject: tuple[SchemaCodec, int] | None = None
        #: The codec of each schema id, or the reason why the schema can't be used.
        self._of_id: dict[int, SchemaCodec | CodecError] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections to the registry. Cached schemas remain usable."""
        with self._lock:
            self._registry.close()

    def load(self) -> None:
        """Requests the latest schema of the subject, unless it is loaded. Blocks: use `asyncio.to_thread`.

        Raises:
            ConfigError: The codec has no subject, the registry lacks it, or refuses the credentials.
            ClientError: The registry doesn't respond in time.
            CodecError: The schema is invalid.
            MissingExtra: The library of the schema's format is not installed.
        """
        self._to_encode()

    def encode(self, value: Any) -> bytes:
        """Encodes a value with the schema of the subject.

        Args:
            value: A value of the schema.

        Returns:
            The prefix with the id of the schema, and the encoded value.

        Raises:
            CodecError: The value does not match the schema.
            ConfigError: As for `load`.
            ClientError: As for `load`.
        """
        codec, schema_id = self._to_encode()
        return prefix(schema_id) + codec.encode(value)

    def encode_json(self, data: bytes) -> bytes:
        """Encodes a JSON text with the schema of the subject. The JSON has the form that `to_json` returns.

        Raises CodecError with the field that does not match the schema, and the other errors of `encode`.
        """
        codec, schema_id = self._to_encode()
        try:
            value = json.loads(data)
        except (RecursionError, ValueError) as e:
            raise CodecError(f"no JSON: {e}") from e
        return prefix(schema_id) + codec.encode(codec.from_json(value))

    def decode(self, data: bytes) -> Any:
        """Decodes a body with the schema whose id it has.

        Args:
            data: The body.

        Returns:
            The value.

        Raises:
            CodecError: The body lacks the prefix, the registry lacks the schema, or the value is corrupt.
            ConfigError: The registry refuses the credentials.
            ClientError: The registry doesn't respond in time. The body can be valid: decode it again later.
        """
        schema_id, rest = split(data, self._names)
        found = self._of_id.get(schema_id)
        if found is None:
            found = self._loaded(schema_id)
        if isinstance(found, CodecError):
            raise CodecError(str(found))
        return found.decode(rest)

    def value(self, message: MessageExt) -> Any:
        """Decodes a received value. Raises CodecError with the message's position, and the errors of `decode`."""
        try:
            return self.decode(message.body)
        except CodecError as e:
            raise CodecError(f"message {message.msg_id} at {message.place}: {e}") from e

    def to_json(self, value: Any) -> bytes:
        if hasattr(value, "DESCRIPTOR"):
            from gantrymq.codecs.protobuf import ProtobufCodec

            return ProtobufCodec(type(value)).to_json(value)
        return super().to_json(value)

    def handler(self, handle: Callable[[Any, MessageExt], object]) -> Callable[[MessageExt], object]:
        """Returns a handler for a push consumer, as `Codec.handler` does. Requests do not block the event loop.

        If the registry doesn't respond, the handler raises ClientError, and the message is redelivered.
        """
        decoded = super().handler(handle)
        if not inspect.iscoroutinefunction(decoded):
            return decoded

        async def loaded(message: MessageExt) -> object:
            # `decoded` raises the CodecError again, with the position of the message.
            with suppress(CodecError):
                schema_id, _ = split(message.body, self._names)
                if schema_id not in self._of_id:
                    await asyncio.to_thread(self._loaded, schema_id)
            return await decoded(message)

        return loaded

    def _to_encode(self) -> tuple[SchemaCodec, int]:
        if self._of_subject is None:
            if self._subject is None:
                raise ConfigError("a RegistryCodec without a subject only decodes: give the argument subject")
            with self._lock:
                if self._of_subject is None:
                    found = self._registry.subject_schema(self._subject, None)
                    self._of_subject = schema_codec(self._registry, found, found.id, self._message), found.id
        return self._of_subject

    def _loaded(self, schema_id: int) -> SchemaCodec | CodecError:
        """Returns the codec of a schema, or the reason why it can't be used. Raises CodecError for an unknown id."""
        with self._lock:
            found = self._of_id.get(schema_id)
            if found is not None:
                return found
            schema = self._registry.schema(schema_id)
            # Not cached here: the id may be registered later. `SchemaRegistry` limits requests for unknown ids.
            if schema is None:
                raise CodecError(f"the schema registry has no schema {schema_id}, which the body names")
            try:
                found = schema_codec(self._registry, schema, schema_id)
            except CodecError as e:
                found = CodecError(f"schema {schema_id}, which the body names, can't be used: {e}")
            if len(self._of_id) >= MAX_CACHED:
                self._of_id.clear()
            self._of_id[schema_id] = found
            return found
