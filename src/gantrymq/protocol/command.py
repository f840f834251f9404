"""A request or response, and its frame.

    int32 length of the rest | int8 header encoding | int24 header length | header | body

Create a command with `RemotingCommand.request` or `.response`. A `FrameReader` creates commands from bytes. Their ext
fields stay encoded until `ext_fields` or `read_header` is used.
Source: remoting/protocol/RemotingCommand.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import TypeVar

import msgspec

from gantrymq.errors import FrameError, HeaderError
from gantrymq.protocol import binary_header, json_header
from gantrymq.protocol.codes import PROTOCOL_VERSION, LanguageCode
from gantrymq.protocol.headers.header import Header, header_fields

#: Longest frame that Java's NettyDecoder accepts, in bytes (com.rocketmq.remoting.frameMaxLength).
MAX_FRAME_LENGTH = 16 * 1024 * 1024

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

_FRAME_PREFIX = Struct(">iI")
_MAX_HEADER_LENGTH = 0xFFFFFF
#: A frame's prefix and a binary header up to the ext fields, with an empty remark (`binary_header`).
_BINARY_HEAD = Struct(">iIhBhiiii")
_pack_binary_head = _BINARY_HEAD.pack
_FIXED_LENGTH = _BINARY_HEAD.size - _FRAME_PREFIX.size
#: The JSON header of `encode_success`, with the opaque number.
_SUCCESS = json_header.encode(0, LanguageCode.PYTHON, PROTOCOL_VERSION, 0, RESPONSE_FLAG, None, b"").replace(
    b'"opaque":0', b'"opaque":%d'
)

H = TypeVar("H", bound=Header)


@cache
def _json_decoder(header_type: type[Header]) -> msgspec.json.Decoder[Header]:
    return msgspec.json.Decoder(header_type, strict=False)


class SerializeType(IntEnum):
    """The encoding of a header (`SerializeType`)."""

    JSON = 0
    ROCKETMQ = 1


_BINARY = int(SerializeType.ROCKETMQ)


class RemotingCommand:
    """A request or a response.

    `code` is a RequestCode in a request and a ResponseCode in a response. `opaque` matches a response to its request on
    one connection. `raw_ext` has the ext fields in the encoding `serialize_type`, in decoded commands only.
    `received_at` is the monotonic time at which a server received a request, in seconds. It is 0.0 if the server does
    not measure latencies.
    """

    __slots__ = (
        "_fields",
        "body",
        "code",
        "flag",
        "language",
        "opaque",
        "raw_ext",
        "received_at",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        language: int,
        version: int,
        opaque: int,
        flag: int,
        remark: str | None,
        raw_ext: bytes,
        body: bytes,
        serialize_type: int,
    ) -> None:
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.raw_ext = raw_ext
        self.body = body
        self.serialize_type = serialize_type
        self._fields: dict[str, str] | None = None
        self.received_at = 0.0

    @classmethod
    def request(
        cls, code: int, header: Header | None = None, body: bytes = b"", *, fields: dict[str, str] | None = None
    ) -> RemotingCommand:
        """Creates a request with a typed `header`. `fields` are further ext fields."""
        return cls._new(code, 0, None, header, fields, body)

    @classmethod
    def response(
        cls,
        code: int = 0,
        remark: str | None = None,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> RemotingCommand:
        """Creates a response. The connection sets its opaque number and header encoding from the request."""
        return cls._new(code, RESPONSE_FLAG, remark, header, fields, body)

    @classmethod
    def _new(
        cls,
        code: int,
        flag: int,
        remark: str | None,
        header: Header | None,
        fields: dict[str, str] | None,
        body: bytes,
    ) -> RemotingCommand:
        command = cls(int(code), LanguageCode.PYTHON, PROTOCOL_VERSION, 0, flag, remark, b"", body, SerializeType.JSON)
        command._fields = header_fields(header) if header is not None else {}
        if fields:
            command._fields.update(fields)
        return command

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def ext_fields(self) -> dict[str, str]:
        """The ext fields. `encode` includes changes of this dictionary. Raises HeaderError for invalid fields."""
        if self._fields is None:
            if self.serialize_type == SerializeType.JSON:
                self._fields = json_header.decode_fields(self.raw_ext)
            else:
                self._fields = binary_header.decode_fields(self.raw_ext)
        return self._fields

    def read_header(self, header_type: type[H]) -> H:
        """Returns the ext fields as a typed header. Raises HeaderError with the name of a missing or invalid field."""
        if self._fields is None and self.serialize_type == SerializeType.JSON and self.raw_ext:
            # Decodes the JSON directly, without a dictionary. If this fails, the slower code below accepts more forms.
            try:
                return _json_decoder(header_type).decode(self.raw_ext)  # type: ignore[return-value]
            except json_header.UNREADABLE_JSON:
                pass
        try:
            return msgspec.convert(self.ext_fields, header_type, strict=False)
        except msgspec.ValidationError as e:
            raise HeaderError(f"{header_type.__name__}: {e}") from e

    def without_content(self) -> RemotingCommand:
        """Returns a copy without fields and body, which is enough to send the response."""
        copy = RemotingCommand(
            self.code, self.language, self.version, self.opaque, self.flag, None, b"", b"", self.serialize_type
        )
        copy.received_at = self.received_at
        return copy

    def encode(self) -> bytes:
        """Returns the whole frame."""
        return self.encode_head(len(self.body)) + self.body

    def encode_head(self, body_length: int) -> bytes:
        """Returns the frame without its body, for a body of `body_length` bytes that is sent separately."""
        fields = self._fields
        if fields is None and self.serialize_type == _BINARY and not self.remark:
            # Fast path for sends: 0.3 us instead of 0.45 us. Values that don't fit raise in the general path below.
            ext = self.raw_ext
            length = _FIXED_LENGTH + len(ext)
            if length <= _MAX_HEADER_LENGTH:
                try:
                    return (
                        _pack_binary_head(
                            4 + length + body_length,
                            _BINARY << 24 | length,
                            self.code,
                            self.language,
                            self.version,
                            self.opaque,
                            self.flag,
                            0,
                            len(ext),
                        )
                        + ext
                    )
                except StructError:
                    pass
        if self.serialize_type == SerializeType.JSON:
            encode, ext = json_header.encode, self.raw_ext if fields is None else json_header.encode_fields(fields)
        else:
            encode, ext = binary_header.encode, self.raw_ext if fields is None else binary_header.encode_fields(fields)
        header = encode(self.code, self.language, self.version, self.opaque, self.flag, self.remark, ext)
        if len(header) > _MAX_HEADER_LENGTH:
            raise FrameError(f"header of {len(header)} bytes: at most {_MAX_HEADER_LENGTH} fit a frame")
        return _FRAME_PREFIX.pack(4 + len(header) + body_length, (self.serialize_type << 24) | len(header)) + header

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return f"<{kind} code={self.code} opaque={self.opaque} remark={self.remark!r} body={len(self.body)} bytes>"


def encode_success(request: RemotingCommand) -> bytes:
    """Returns the frame of a successful response to `request`, without fields and body.

    With a JSON header, this takes a quarter of the time of `RemotingCommand.response` and `encode`.
    """
    if request.serialize_type == SerializeType.JSON:
        header = _SUCCESS % request.opaque
        return _FRAME_PREFIX.pack(4 + len(header), len(header)) + header
    response = RemotingCommand.response()
    response.opaque, response.serialize_type = request.opaque, request.serialize_type
    return response.encode()
