"""Converts the input of `gantry produce` from bytes to messages. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.cli.json_message import decode, to_send
from gantrymq.errors import BodyError, CodecError
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import KEYS

#: The longest message, in bytes: the default limit of brokers (maxMessageSize).
MAX_LENGTH = 4 * 1024 * 1024


class Splitter:
    """Splits an input at each `delimiter`. Without a delimiter, the whole input is one part.

    A part that is longer than MAX_LENGTH becomes None. Its bytes are not collected in memory.
    """

    def __init__(self, delimiter: bytes | None) -> None:
        self._delimiter = delimiter
        self._rest = b""
        self._is_too_long = False

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """Adds a chunk of the input, and returns the parts that the chunk completes."""
        parts: list[bytes | None] = []
        if self._delimiter is None:
            self._rest += chunk
        else:
            *ended, self._rest = (self._rest + chunk).split(self._delimiter)
            for part in ended:
                parts.append(None if self._is_too_long or len(part) > MAX_LENGTH else part)
                self._is_too_long = False
        # Keep the end of the rest, which can be the beginning of a delimiter.
        keep = 0 if self._delimiter is None else len(self._delimiter) - 1
        if len(self._rest) > MAX_LENGTH + keep:
            self._is_too_long = True
        if self._is_too_long:
            self._rest = self._rest[len(self._rest) - keep :] if keep else b""
        return parts

    def finish(self) -> list[bytes | None]:
        """Returns the rest of the input as the last part, if the input doesn't end with a delimiter."""
        rest, self._rest = self._rest, b""
        if self._is_too_long:
            self._is_too_long = False
            return [None]
        return [rest] if rest else []


class MessageMaker:
    """Converts parts of the input to messages for a topic.

    If `json` is true, a part is a JSON object. Otherwise a part is a body or, with a `key_separator`, a key, the
    separator and a body. `defaults` has the default properties. `encode` encodes the body of a part, which is JSON; it
    raises CodecError.
    """

    def __init__(
        self,
        topic: str,
        defaults: Message,
        *,
        json: bool,
        key_separator: bytes | None,
        encode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._topic = topic
        self._defaults = defaults
        self._json = json
        self._key_separator = key_separator
        self._encode = encode

    def message(self, part: bytes | None) -> Message:
        """Returns the message of a part. Raises BodyError if the part is invalid or too long (None)."""
        if part is None:
            raise BodyError(
                f"longer than {MAX_LENGTH:,} bytes, which is more than brokers take (maxMessageSize): is the delimiter "
                "right?"
            )
        if self._json:
            return to_send(decode(part), self._topic, self._defaults)
        message = Message(self._topic, part, properties=self._defaults.properties)
        if self._key_separator is not None:
            key, found, body = part.partition(self._key_separator)
            if found:
                message.body = body
                try:
                    message.properties[KEYS] = key.decode()
                except UnicodeDecodeError as e:
                    raise BodyError(f"the key {key[:100]!r} is no UTF-8 text") from e
        if self._encode is not None:
            try:
                message.body = self._encode(message.body)
            except CodecError as e:
                raise BodyError(str(e)) from e
        return message
