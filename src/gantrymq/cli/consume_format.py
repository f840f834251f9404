"""The output formats of `gantry consume`: converts a format string, as in kcat, to a function."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from gantrymq.cli.values import unescape
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import KEYS, TAGS

#: Decodes the body of a message. Returns the value as JSON; None to show the body as it was sent.
DecodeBody = Callable[[MessageExt], Awaitable[bytes | None]]


class Formatter(Protocol):
    """Formats a message as a line. `value` is the decoded body as JSON, if it was decoded."""

    def __call__(self, message: MessageExt, value: bytes | None = None) -> bytes: ...


#: The tokens, except %s.
_FIELDS: dict[str, Callable[[MessageExt], bytes]] = {
    "S": lambda message: b"%d" % len(message.body),
    "k": lambda message: message.properties.get(KEYS, "").encode(),
    "K": lambda message: b"%d" % len(message.properties.get(KEYS, "").encode()),
    "g": lambda message: message.properties.get(TAGS, "").encode(),
    "h": lambda message: ",".join([f"{name}={value}" for name, value in message.properties.items()]).encode(),
    "t": lambda message: message.topic.encode(),
    "b": lambda message: message.broker_name.encode(),
    "p": lambda message: b"%d" % message.queue_id,
    "o": lambda message: b"%d" % message.queue_offset,
    "T": lambda message: b"%d" % message.store_timestamp,
    "B": lambda message: b"%d" % message.born_timestamp,
    "i": lambda message: message.msg_id.encode(),
    "r": lambda message: b"%d" % message.reconsume_times,
}


def body_decoder(codec_name: str) -> DecodeBody:
    """Returns a function that decodes the body of a message with a codec.

    Raises CodecError for an unknown codec. The function raises CodecError for a body that can't be decoded.
    """
    from gantrymq.codecs import codec_named

    # sys.path[0] is the directory of the script `gantry`. Users expect imports from the working directory.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    codec = codec_named(codec_name)

    async def decode(message: MessageExt) -> bytes:
        return codec.to_json(codec.value(message))

    return decode


def formatter(text: str) -> Formatter:
    """Returns a function that formats a message by the format string `text`.

    Raises ClientError for an unknown token or an invalid escape.
    """
    #: None stands for %s.
    parts: list[Callable[[MessageExt], bytes] | None] = []
    template = b""
    for literal, token in re.findall(r"([^%]+)|%(.?)", text, re.DOTALL):
        if literal:
            try:
                template += unescape(literal).replace(b"%", b"%%")
            except ValueError as e:
                raise ClientError(f"the format {text!r}: {e}") from e
        elif token == "%":
            template += b"%%"
        elif token == "s" or token in _FIELDS:
            template += b"%b"
            parts.append(_FIELDS.get(token))
        else:
            raise ClientError(
                f"%{token} in the format {text!r} means nothing: gantry consume --help says what there is"
            )

    def form(message: MessageExt, value: bytes | None = None) -> bytes:
        body = message.body if value is None else value
        return template % tuple([body if part is None else part(message) for part in parts])

    return form
