"""Encodes the head of a pull response directly to bytes. The records follow it.

Responses differ only in numbers, so a template has the rest. This takes 1 us, instead of 5 us with a typed header, a
dictionary and an encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from struct import Struct
from types import MappingProxyType

from gantrymq.protocol.codes import PROTOCOL_VERSION, LanguageCode
from gantrymq.protocol.command import RESPONSE_FLAG, SerializeType

#: Frame length, encoding and header length, then the binary header up to the remark's length.
_BINARY_HEAD = Struct(">iIhBhiii")
_BINARY_HEADER_SIZE = _BINARY_HEAD.size - 8
_pack_binary_head = _BINARY_HEAD.pack
_BINARY_ENCODING = SerializeType.ROCKETMQ << 24
_PYTHON = int(LanguageCode.PYTHON)
_FRAME_PREFIX = Struct(">ii")
_ROCKETMQ = int(SerializeType.ROCKETMQ)
_EXT = (
    b"%b\x00\x14suggestWhichBrokerId\x00\x00\x00%c%b\x00\x0fnextBeginOffset\x00\x00\x00%c%b"
    b"\x00\x09minOffset\x00\x00\x00%c%b\x00\x09maxOffset\x00\x00\x00%c%b"
)
#: Size of the ext fields without the four values, in bytes.
_EXT_SIZE = len(_EXT) - len(b"%b") - 4 * len(b"%c%b") + 4
_JSON = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d",'
    b'"maxOffset":"%%d"%%b},"flag":%d,"language":"PYTHON","opaque":%%d,"remark":"%%b","serializeTypeCurrentRPC":"JSON",'
    b'"version":%d}' % (RESPONSE_FLAG, PROTOCOL_VERSION)
)
NO_FIELDS: Mapping[str, str] = MappingProxyType({})


def encode_pull_head(
    serialize_type: int,
    opaque: int,
    code: int,
    remark: str,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_length: int,
    private_fields: Mapping[str, str] = NO_FIELDS,
) -> bytes:
    """Returns the frame up to its body, in the request's header encoding.

    `remark` and the private fields must be plain words, because they are not escaped.
    """
    if serialize_type == _ROCKETMQ:
        suggested, following = b"%d" % suggest_which_broker_id, b"%d" % next_begin_offset
        lowest, highest = b"%d" % min_offset, b"%d" % max_offset
        suggested_size, following_size = len(suggested), len(following)
        lowest_size, highest_size = len(lowest), len(highest)
        ext_size = _EXT_SIZE + suggested_size + following_size + lowest_size + highest_size
        tail = _EXT % (
            ext_size.to_bytes(4, "big"),
            suggested_size,
            suggested,
            following_size,
            following,
            lowest_size,
            lowest,
            highest_size,
            highest,
        )
        if private_fields:
            more = b"".join(_binary_field(name, value) for name, value in private_fields.items())
            tail = (ext_size + len(more)).to_bytes(4, "big") + tail[4:] + more
            ext_size += len(more)
        length, remark_bytes = _remark(remark)
        header_length = _BINARY_HEADER_SIZE + length + 4 + ext_size
        head = _pack_binary_head(
            4 + header_length + body_length,
            _BINARY_ENCODING | header_length,
            code,
            _PYTHON,
            PROTOCOL_VERSION,
            opaque,
            RESPONSE_FLAG,
            length,
        )
        return head + remark_bytes + tail
    header = _JSON % (
        code,
        suggest_which_broker_id,
        next_begin_offset,
        min_offset,
        max_offset,
        "".join(f',"{name}":"{value}"' for name, value in private_fields.items()).encode(),
        opaque,
        _remark(remark)[1],
    )
    return _FRAME_PREFIX.pack(4 + len(header) + body_length, len(header)) + header


def _binary_field(name: str, value: str) -> bytes:
    return len(name).to_bytes(2, "big") + name.encode() + len(value).to_bytes(4, "big") + value.encode()


@cache
def _remark(remark: str) -> tuple[int, bytes]:
    return len(remark), remark.encode()
