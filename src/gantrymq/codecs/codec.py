"""Codec: bytes from a value and back, and what producers and consumers make of that."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypedDict, TypeVar, Unpack, cast

import msgspec

from gantrymq.errors import ClientError, CodecError
from gantrymq.protocol.message import Message, MessageExt

T = TypeVar("T")

#: The property that says what the body is. Spring's binder and rocketmq-spring name it so; SQL92 filters can, too.
CONTENT_TYPE = "contentType"


class MessageOptions(TypedDict, total=False):
    """The arguments of Message, but for its topic and body."""

    tags: str | None
    keys: str | Iterable[str] | None
    sharding_key: str | None
    delay_level: int
    delay_ms: int | None
    deliver_at_ms: int | None
    flag: int
    properties: dict[str, str] | None


class Codec(ABC, Generic[T]):
    """Bytes from values of one type and back. One of your own defines `content_type`, `encode` and `decode`."""

    #: A media type; messages that are made here have it in the property `contentType`. Nothing is chosen by it.
    content_type: str

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The bytes of a value. Raises CodecError for one that has none in this format."""

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """The value of bytes. Raises CodecError when they are none of this type, all of them."""

    def to_json(self, value: T) -> bytes:
        """A value as JSON on one line, for people and tools; bytes are Base64. Raises CodecError where it has none."""
        try:
            return msgspec.json.encode(value)
        except Exception as e:
            raise CodecError(f"{type(value).__name__} as JSON: {e}") from e

    def message(self, topic: str, value: T, **options: Unpack[MessageOptions]) -> Message:
        """A message with this value to send; `options` are those of Message. Raises CodecError, IllegalMessage."""
        message = Message(topic, self.encode(value), **options)
        message.properties.setdefault(CONTENT_TYPE, self.content_type)
        return message

    def value(self, message: MessageExt) -> T:
        """The value in a received message.

        Raises CodecError, which says where the message is stored, and what reading its `body` raises.
        """
        data = message.body
        try:
            return self.decode(data)
        except Exception as e:
            problem = e if isinstance(e, CodecError) else f"{type(e).__name__}: {e}"
            raise CodecError(f"message {message.msg_id} at {message.place}: {problem}") from e

    def handler(self, handle: Callable[[T, MessageExt], object]) -> Callable[[MessageExt], object]:
        """A push consumer's handler that calls `handle` with the value and the message; plain or async as that is.

        A body that can't be decoded is a failure of the handler, a CodecError: the message comes again, and goes to the
        dead letter queue at last. Raises ClientError for a function that can't be called so.
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
    """The error for bytes that are no `what`."""
    return CodecError(f"no {what}: {_told(error)}")


def unencodable(what: str, value: object, error: Exception) -> CodecError:
    """The error for a value that can't be written as `what`."""
    return CodecError(f"{type(value).__name__} can't be written as {what}: {_told(error)}")


def _told(error: Exception) -> str:
    """Some libraries' errors have no words of their own."""
    text = str(error)
    return text if len(text) > 20 else f"{type(error).__name__}: {text}" if text else type(error).__name__
