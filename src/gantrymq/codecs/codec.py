"""Codec: base class that encodes values to bytes and back, with helpers for producers and consumers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Generic, TypedDict, TypeVar, Unpack, cast

import msgspec

from gantrymq.errors import ClientError, CodecError
from gantrymq.protocol.message import Message, MessageExt

T = TypeVar("T")

#: Property with the type of the body. Spring's binder and rocketmq-spring use this name, and SQL92 filters can read it.
CONTENT_TYPE = "contentType"


class MessageOptions(TypedDict, total=False):
    """Arguments of Message other than topic and body."""

    tags: str | None
    keys: str | Iterable[str] | None
    sharding_key: str | None
    delay_level: int
    delay: float | timedelta | None
    deliver_at: datetime | int | None
    flag: int
    properties: dict[str, str] | None


class Codec(ABC, Generic[T]):
    """Encodes values of one type. Subclasses define `content_type`, `encode` and `decode`."""

    #: Media type. `message` stores it in the property `contentType`. Decoding does not depend on it.
    content_type: str

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Encodes a value. Raises CodecError if it has no encoding in this format."""

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """Decodes a value. Raises CodecError unless all bytes are one value of this type."""

    def to_json(self, value: T) -> bytes:
        """Returns a value as JSON on one line, for people and tools; bytes as Base64. Raises CodecError."""
        try:
            return msgspec.json.encode(value)
        except Exception as e:
            raise CodecError(f"{type(value).__name__} as JSON: {e}") from e

    def message(self, topic: str, value: T, **options: Unpack[MessageOptions]) -> Message:
        """Returns a message with this value. `options` are those of Message. Raises CodecError or IllegalMessage."""
        message = Message(topic, self.encode(value), **options)
        message.properties.setdefault(CONTENT_TYPE, self.content_type)
        return message

    def value(self, message: MessageExt) -> T:
        """Decodes a received value. Raises CodecError with the message's position, and the errors of `body`."""
        data = message.body
        try:
            return self.decode(data)
        except Exception as e:
            problem = e if isinstance(e, CodecError) else f"{type(e).__name__}: {e}"
            raise CodecError(f"message {message.msg_id} at {message.place}: {problem}") from e

    def handler(self, handle: Callable[[T, MessageExt], object]) -> Callable[[MessageExt], object]:
        """Returns a handler for a push consumer that calls `handle` with the value and the message.

        The handler is a coroutine function if `handle` is one. If a body cannot be decoded, the handler raises
        CodecError: the message is redelivered, and finally goes to the dead-letter queue.

        Raises:
            ClientError: `handle` cannot be called with two arguments.
        """
        try:
            inspect.signature(handle).bind(None, None)
        except (TypeError, ValueError) as e:
            raise ClientError(f"{handle!r} can't be called with a value and its message: {e}") from None
        if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(type(handle).__call__):
            coroutine_function = cast(Callable[[T, MessageExt], Awaitable[object]], handle)

            async def decoded_async(message: MessageExt) -> object:
                return await coroutine_function(self.value(message), message)

            return decoded_async

        def decoded(message: MessageExt) -> object:
            return handle(self.value(message), message)

        return decoded


def undecodable(what: str, error: Exception) -> CodecError:
    """Returns the error for bytes that cannot be decoded as `what`."""
    return CodecError(f"no {what}: {_error_text(error)}")


def unencodable(what: str, value: object, error: Exception) -> CodecError:
    """Returns the error for a value that cannot be encoded as `what`."""
    return CodecError(f"{type(value).__name__} can't be written as {what}: {_error_text(error)}")


def _error_text(error: Exception) -> str:
    """Returns the text of an error, with its type if the text is short or empty."""
    text = str(error)
    return text if len(text) > 20 else f"{type(error).__name__}: {text}" if text else type(error).__name__
