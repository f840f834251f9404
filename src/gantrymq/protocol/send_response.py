"""Encodes and decodes the response to a send directly as bytes.

Responses differ only in msgId, queueId, queueOffset, transactionId and the opaque number, so a template has the rest. A
response takes 0.6 us, instead of 4 us with a typed header, a dictionary and an encoder. Trace fields come last.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, pack
from typing import NamedTuple

from gantrymq.errors import HeaderError
from gantrymq.protocol import binary_header, json_header
from gantrymq.protocol.codes import PROTOCOL_VERSION, LanguageCode
from gantrymq.protocol.command import RESPONSE_FLAG, RemotingCommand, SerializeType
from gantrymq.protocol.properties import MSG_REGION, TRACE_SWITCH

#: Frame length, encoding and header length, then the binary header's fixed fields, remark length 0 and ext length.
_BINARY_HEAD = Struct(">iIhBhiiii")
_BINARY_HEADER_SIZE = _BINARY_HEAD.size - 8
_pack_binary_head = _BINARY_HEAD.pack
_BINARY = int(SerializeType.ROCKETMQ)
_BINARY_ENCODING = _BINARY << 24
_PYTHON = int(LanguageCode.PYTHON)
_FRAME_PREFIX = Struct(">ii")
_LENGTHS = [n.to_bytes(4, "big") for n in range(64)]
#: Fields of a binary response, with and without a transaction id. Both templates take the same arguments. In the second
#: template the id is empty, and `%.0b` omits its length.
_WITH_ID = b"%b%016X\x00\x07queueId%b%b\x00\x0bqueueOffset%b%b\x00\x0dtransactionId%b%b%b"
_WITHOUT_ID = _WITH_ID.replace(b"\x00\x0dtransactionId%b", b"%.0b")
#: Field names in a binary response, each with the first two or three bytes of its value's length.
_MSG_ID = b"\x00\x05msgId\x00\x00"
_QUEUE_ID = b"\x00\x07queueId\x00\x00\x00"
_QUEUE_OFFSET = b"\x00\x0bqueueOffset\x00\x00\x00"
_TRANSACTION_ID = b"\x00\x0dtransactionId\x00\x00\x00"
#: Longest fields about traces, in bytes.
_LONGEST_TAIL = 512
#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__
#: JSON before the host and physical offset, the queue id, the queue offset and the opaque number, and after the last.
_JSON_PARTS = (
    b'{"code":0,"extFields":{"msgId":"',
    b'","queueId":"',
    b'","queueOffset":"',
    b'},"flag":%d,"language":"PYTHON","opaque":' % RESPONSE_FLAG,
    b',"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION,
)
_JSON = b'%b%%b%%016X%b%%d%b%%d"%%b%b%%d%b' % _JSON_PARTS
_JSON_WITH_ID = _JSON.replace(b'%d"%b', b'%d","transactionId":"%b"%b')


class SendResponses:
    """Encodes the send responses of one broker. `store_host` is as in a record; the other arguments are for traces."""

    def __init__(self, store_host: bytes, region_id: str, trace_on: bool) -> None:
        fields = {MSG_REGION: region_id, TRACE_SWITCH: "true" if trace_on else "false"}
        self._binary_tail = binary_header.encode_fields(fields)
        self._json_tail = b"," + json_header.encode_fields(fields)[1:-1]
        self._host = store_host.hex().upper().encode()
        id_length = len(self._host) + 16
        self._prefix = b"\x00\x05msgId\x00\x00\x00%c%b" % (id_length, self._host)

    @property
    def for_native(self) -> tuple[bytes, tuple[bytes, bytes], tuple[bytes, bytes, bytes, bytes, bytes]]:
        """Templates for native code: the prefix of message ids, and the parts of responses in both encodings.

        Binary: the header before the opaque number, and the fields after the queue offset. JSON: the parts before
        message ids, queue id, queue offset and opaque number, and the part after it.
        """
        first, second, third, fourth, last = _JSON_PARTS
        binary = pack(">hBh", 0, _PYTHON, PROTOCOL_VERSION), self._binary_tail
        return self._host, binary, (first, second, third, b'"' + self._json_tail + fourth, last)

    def encode(
        self,
        serialize_type: int,
        opaque: int,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_id: bytes = b"",
    ) -> bytes:
        """Returns the frame of a response with SUCCESS, in the request's header encoding.

        The transaction id is the message's unique id (`SendMessageProcessor.handlePutMessageResult`).
        """
        if serialize_type == SerializeType.ROCKETMQ:
            queue = b"%d" % queue_id
            offset = b"%d" % queue_offset
            size = len(unique_id)
            ext = (_WITH_ID if unique_id else _WITHOUT_ID) % (
                self._prefix,
                physical_offset,
                _LENGTHS[len(queue)],
                queue,
                _LENGTHS[len(offset)],
                offset,
                _LENGTHS[size] if size < len(_LENGTHS) else size.to_bytes(4, "big"),
                unique_id,
                self._binary_tail,
            )
            length = _BINARY_HEADER_SIZE + len(ext)
            return (
                _pack_binary_head(
                    4 + length,
                    _BINARY_ENCODING | length,
                    0,
                    _PYTHON,
                    PROTOCOL_VERSION,
                    opaque,
                    RESPONSE_FLAG,
                    0,
                    len(ext),
                )
                + ext
            )
        tail = self._json_tail
        if unique_id.isalnum():
            # Letters and digits need no escapes. This saves 0.6 us, 3 % of the broker's time for a send.
            header = _JSON_WITH_ID % (self._host, physical_offset, queue_id, queue_offset, unique_id, tail, opaque)
        else:
            if unique_id:
                field = json_header.encode_fields({"transactionId": unique_id.decode(errors="replace")})[1:-1]
                tail = b",%b%b" % (field, tail)
            header = _JSON % (self._host, physical_offset, queue_id, queue_offset, tail, opaque)
        return _FRAME_PREFIX.pack(4 + len(header), len(header)) + header


class SendAnswer(NamedTuple):
    """The result of `decode_send_response`. If the response has no trace fields, these have their defaults."""

    msg_id: str
    queue_offset: int
    transaction_id: str | None
    region_id: str
    trace_on: bool


@lru_cache(maxsize=4096)
def _between(queue_id: int) -> bytes:
    """Returns the bytes between the message id and the queue offset's length. Cached."""
    queue = b"%d" % queue_id
    return b"%b%c%b%b" % (_QUEUE_ID, len(queue), queue, _QUEUE_OFFSET)


def decode_send_response(response: RemotingCommand, queue_id: int) -> SendAnswer | None:
    """Decodes a response in the form of `SendResponses`, for a message of this queue. Returns None for other forms.

    Takes 0.7 us instead of 3 us with a dictionary and a typed header.
    """
    ext = response.raw_ext
    if response.serialize_type != _BINARY or ext[:9] != _MSG_ID:
        return None
    between = _between(queue_id)
    try:
        # Two bytes of the length are read, for the ids of a batch. Longer ids are rare and take the general path.
        id_end = 11 + (ext[9] << 8) + ext[10]
        length_at = id_end + len(between)
        start = length_at + 1
        end = start + ext[length_at]
    except IndexError:
        return None
    offset = ext[start:end]
    transaction_id = None
    # A unique id has fewer than 256 bytes, so only one byte of its length is read.
    if ext.startswith(_TRANSACTION_ID, end):
        id_start = end + len(_TRANSACTION_ID) + 1
        end = id_start + ext[id_start - 1] if id_start <= len(ext) else len(ext) + 1
        transaction_id = ext[id_start:end].decode("utf-8", "replace")
    trace = decode_trace(ext[end:]) if 0 <= len(ext) - end <= _LONGEST_TAIL else None
    if trace is None or ext[id_end:length_at] != between or not offset.isdigit():
        return None
    region_id, trace_on = trace
    msg_id = ext[11:id_end].decode("ascii", "replace")
    return _new(SendAnswer, (msg_id, int(offset), transaction_id, region_id, trace_on))


@lru_cache(maxsize=64)
def decode_trace(tail: bytes) -> tuple[str, bool] | None:
    """Returns the region and whether to write traces, from the last fields; None if there are other fields."""
    try:
        fields = binary_header.decode_fields(tail)
    except HeaderError:
        return None
    if not fields.keys() <= {MSG_REGION, TRACE_SWITCH}:
        return None
    return fields.get(MSG_REGION, ""), fields.get(TRACE_SWITCH) != "false"
