"""`RegistryCodec` encodes and decodes bodies with the schemas of a registry. Needs `gantrymq[registry]`."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from gantrymq.background.shared_task import own_copy
from gantrymq.codecs.codec import Codec
from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, known_schema
from gantrymq.codecs.registry.schema_cache import SchemaCache
from gantrymq.codecs.registry.schema_codecs import Encodes, SchemaCodec, schema_codec
from gantrymq.codecs.registry.settings import RegistrySettings, split_urls
from gantrymq.codecs.registry.wire_format import prefix, split
from gantrymq.errors import ClientError, CodecError, ConfigError
from gantrymq.protocol.message import MessageExt

K = TypeVar("K")
V = TypeVar("V")


class RegistryCodec(Codec[Any]):
    """Encodes values with the latest schema of a subject, and decodes bodies with the schema whose id they have.

    Bodies have the format of Confluent's serializers. Schemas are Avro, JSON Schema or protobuf. Avro records and JSON
    objects are dictionaries. `decode` returns a protobuf message; `encode` also takes a dictionary in protobuf's JSON
    mapping. JSON values are checked against the JSON Schema when they are encoded (`json_schema_check`).

    The codec requests a schema once. `load` requests the schema of the subject; otherwise the first `encode` does, and
    blocks its thread. A codec keeps this version. In coroutines, `value_async` and `handler` decode without blocking
    the event loop. Thread-safe.

    If the registry doesn't respond, all callers that wait for it get the error of the first one.

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
        self._of_id = SchemaCache(self._schema, self._codec)
        #: The last error of an unreachable registry, and its time.
        self._failure: tuple[ClientError, float] | None = None
        #: Held during requests.
        self._lock = threading.Lock()
        # One thread, because requests run one after another. It is not the event loop's executor: other code needs its
        # threads while the registry hangs, and `asyncio.run` waits for them.
        self._loader = ThreadPoolExecutor(1, "gantry-schema-registry")

    def close(self) -> None:
        """Closes the connections to the registry, and ends a request in progress. Cached schemas remain usable."""
        self._registry.close()
        self._loader.shutdown(wait=False)

    def load(self) -> None:
        """Requests the latest schema of the subject, unless it is loaded. Blocks: use `asyncio.to_thread`.

        Raises:
            ConfigError: The codec has no subject, the registry lacks it or refuses the credentials, or the schema does
                not have the message.
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
        return prefix(schema_id) + codec.encode(codec.from_json(value, len(data)))

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
        codec = self._of_id.cached(schema_id)
        if codec is None:
            codec = self._loaded(schema_id, time.monotonic())
        return codec.decode(rest)

    def value(self, message: MessageExt) -> Any:
        """Decodes a received value. Raises CodecError with the message's position, and the errors of `decode`."""
        try:
            return self.decode(message.body)
        except CodecError as e:
            raise _at(message, e) from e

    async def value_async(self, message: MessageExt) -> Any:
        """Decodes a received value as `value` does. Requests to the registry do not block the event loop."""
        try:
            schema_id, rest = split(message.body, self._names)
            codec = self._of_id.cached(schema_id)
            if codec is None:
                codec = await self._loaded_async(schema_id)
            return codec.decode(rest)
        except CodecError as e:
            raise _at(message, e) from e

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
        coroutine_function = cast(Callable[[Any, MessageExt], Awaitable[object]], handle)

        async def decoded_async(message: MessageExt) -> object:
            return await coroutine_function(await self.value_async(message), message)

        return decoded_async

    def _to_encode(self) -> tuple[SchemaCodec, int]:
        if self._of_subject is None:
            if self._subject is None:
                raise ConfigError("a RegistryCodec without a subject only decodes: give the argument subject")
            began = time.monotonic()
            with self._lock:
                if self._of_subject is None:
                    self._of_subject = self._requested(began, self._subject_codec, self._subject)
        return self._of_subject

    def _subject_codec(self, subject: str) -> tuple[SchemaCodec, int]:
        found = self._registry.subject_schema(subject, None)
        return schema_codec(self._registry, found, found.id, Encodes(self._message)), found.id

    async def _loaded_async(self, schema_id: int) -> SchemaCodec:
        began = time.monotonic()
        try:
            loading = asyncio.get_running_loop().run_in_executor(self._loader, self._loaded, schema_id, began)
        except RuntimeError:
            # After `close`. There are no requests then, so this does not block.
            return self._loaded(schema_id, began)
        return await loading

    def _loaded(self, schema_id: int, began: float) -> SchemaCodec:
        """Returns the codec of a schema. Raises CodecError if the schema is unknown or can't be used.

        `began` is the time at which the caller began to wait.
        """
        with self._lock:
            if (codec := self._of_id.cached(schema_id)) is not None:
                return codec
            return self._requested(began, partial(self._of_id.get, now=time.monotonic()), schema_id)

    def _schema(self, schema_id: int) -> RegisteredSchema:
        return known_schema(self._registry, schema_id)

    def _codec(self, schema_id: int, schema: RegisteredSchema) -> SchemaCodec:
        return schema_codec(self._registry, schema, schema_id)

    def _requested(self, began: float, request: Callable[[K], V], key: K) -> V:
        """Returns the result of `request(key)`. Must be called with the lock held.

        If another request failed while the caller waited for the lock, raises the same error. Otherwise each of several
        waiting callers would wait for the timeout, one after another.
        """
        if self._failure is not None and self._failure[1] >= began:
            raise own_copy(self._failure[0])
        try:
            return request(key)
        except ClientError as e:
            self._failure = e, time.monotonic()
            raise


def _at(message: MessageExt, error: CodecError) -> CodecError:
    return CodecError(f"message {message.msg_id} at {message.place}: {error}")
