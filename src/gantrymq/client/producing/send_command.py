"""Encodes send requests: the hot path of a producer.

The request is SEND_MESSAGE_V2 with a binary header. Between messages to one queue, only the born time (g), the flag (h)
and the properties (i) differ. The bytes before and after them are cached for each queue. This costs 2 us a message; a
typed header, a dictionary and an encoder cost 7 us. The broker's fast path (`protocol.send_request`) expects Java's
field order a..n. Source: remoting/protocol/header/SendMessageRequestHeaderV2.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from gantrymq.kernels import native
from gantrymq.protocol import binary_header
from gantrymq.protocol.codes import PROTOCOL_VERSION, LanguageCode, RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.private_fields import TIMEOUT_FIELD
from gantrymq.protocol.properties import UNIQUE_KEY_PAIR
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC

#: A frame's prefix and a binary header up to the ext fields, with an empty remark (`binary_header`).
_HEAD = Struct(">iIhBhiiii")
_pack_head = _HEAD.pack
#: Bytes of a binary header before its ext fields.
_FIXED_LENGTH = _HEAD.size - 8
_PYTHON = int(LanguageCode.PYTHON)
_BINARY = SerializeType.ROCKETMQ
_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_pack_length = Struct(">i").pack

#: Number of queues of a topic that the broker creates for its first message (defaultTopicQueueNums).
DEFAULT_TOPIC_QUEUE_NUMS = 4
_CACHE_SIZE = 4096
#: Timeout that a broker assumes if a request has none, ms.
DEFAULT_TIMEOUT_MS = 3000
#: Other timeouts are rounded to the nearest of these values, in ms. Brokers cache each distinct header, so there should
#: be few of them. The timeout of a retry is the remaining time of the send and can have any value. Rounding up is safe,
#: because a broker responds within a share of the timeout.
_ROUND_TIMEOUTS_MS = (
    *(100, 200, 300, 500, 750, 1000, 1500, 2000, DEFAULT_TIMEOUT_MS, 4000, 5000, 7500),
    *(10_000, 15_000, 20_000, 30_000, 45_000, 60_000),
)


@lru_cache(_CACHE_SIZE)
def rounded_timeout(timeout_ms: int) -> int:
    """Returns the value of TIMEOUT_FIELD for a request with this timeout, in ms."""
    return min(_ROUND_TIMEOUTS_MS, key=lambda rounded: abs(rounded - timeout_ms))


@lru_cache(_CACHE_SIZE)
def constant_fields(
    group: str,
    queue: MessageQueue,
    create_topic_key: str,
    default_topic_queue_nums: int,
    unit_mode: bool,
    sys_flag: int,
    batch: bool,
    reconsume_times: int,
    max_reconsume_times: int | None,
    timeout_ms: int,
) -> tuple[bytes, bytes]:
    """Returns the encoded ext fields before the value of g (up to its length's last byte), and those after i."""
    before = {
        "a": group,
        "b": queue.topic,
        "c": create_topic_key,
        "d": str(default_topic_queue_nums),
        "e": str(queue.queue_id),
        "f": str(sys_flag),
    }
    after = {"j": str(reconsume_times), "k": "true" if unit_mode else "false"}
    if max_reconsume_times is not None:
        after["l"] = str(max_reconsume_times)
    after |= {"m": "true" if batch else "false", "n": queue.broker_name}
    if timeout_ms != DEFAULT_TIMEOUT_MS:
        after[TIMEOUT_FIELD] = str(timeout_ms)
    return binary_header.encode_fields(before) + b"\x00\x01g\x00\x00\x00", binary_header.encode_fields(after)


def send_command(
    group: str,
    queue: MessageQueue,
    body: bytes,
    properties: bytes,
    born_timestamp: int,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    batch: bool = False,
    reply: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    create_topic_key: str = AUTO_CREATE_TOPIC,
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
    unit_mode: bool = False,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> RemotingCommand:
    """Returns the request that stores `body` in `queue` for producer `group`.

    Args:
        group: Producer group.
        queue: Queue to store the message in.
        body: Body; with `batch`, the result of `encode_batch`.
        properties: Result of `encode_properties`.
        born_timestamp: Creation time, ms since the epoch.
        flag: Flag of the message.
        sys_flag: System flag, for example for compression.
        batch: Whether the request has several messages.
        reply: Whether the message is a reply. The broker pushes it to the requester.
        reconsume_times: Number of redeliveries, for a retry topic.
        max_reconsume_times: Largest number of redeliveries, for a retry topic.
        create_topic_key: Topic whose settings a new topic gets, if the broker creates the topic.
        default_topic_queue_nums: Number of queues of such a new topic.
        unit_mode: Whether such a new topic is a topic of a unit.
        timeout_ms: Timeout of the client, ms; rounded in the request.
    """
    before, after = constant_fields(
        group,
        queue,
        create_topic_key,
        default_topic_queue_nums,
        unit_mode,
        sys_flag,
        batch,
        reconsume_times,
        max_reconsume_times,
        timeout_ms if timeout_ms == DEFAULT_TIMEOUT_MS else rounded_timeout(timeout_ms),
    )
    ext = _ext_fields(before, after, born_timestamp, flag, properties)
    code = _SEND_BATCH if batch else _SEND_REPLY if reply else _SEND
    return RemotingCommand(code, _PYTHON, PROTOCOL_VERSION, 0, 0, None, ext, body, _BINARY)


def _ext_fields(before: bytes, after: bytes, born_timestamp: int, flag: int, properties: bytes) -> bytes:
    born = b"%d" % born_timestamp
    flag_text = b"%d" % flag
    return b"%b%c%b\x00\x01h\x00\x00\x00%c%b\x00\x01i%b%b%b" % (
        before,
        len(born),
        born,
        len(flag_text),
        flag_text,
        _pack_length(len(properties)),
        properties,
        after,
    )


def send_frame(before: bytes, after: bytes, opaque: int, born_timestamp: int, properties: bytes, body: bytes) -> bytes:
    """Returns the frame that `send_command` makes of one message without a flag.

    `before` and `after` are the results of `constant_fields`.
    """
    if native is not None:
        return native.send_frame(before, after, opaque, born_timestamp, properties, body)
    return _frame(before, after, opaque, born_timestamp, properties, body)


def plain_frame(
    before: bytes, after: bytes, opaque: int, born_timestamp: int, key_head: str, key_number: int, body: bytes
) -> tuple[bytes, str]:
    """Works like `send_frame` for a message whose only property is its id. Returns the frame and the id.

    The last arguments are the body and, before it, the result of `UniqueKeys.take`.
    """
    if native is not None:
        return native.plain_frame(before, after, opaque, born_timestamp, key_head, key_number, body)
    msg_id = f"{key_head}{key_number:04X}"
    return _frame(before, after, opaque, born_timestamp, UNIQUE_KEY_PAIR % msg_id.encode(), body), msg_id


def _frame(before: bytes, after: bytes, opaque: int, born_timestamp: int, properties: bytes, body: bytes) -> bytes:
    ext = _ext_fields(before, after, born_timestamp, 0, properties)
    length = _FIXED_LENGTH + len(ext)
    return (
        _pack_head(4 + length + len(body), 1 << 24 | length, _SEND, _PYTHON, PROTOCOL_VERSION, opaque, 0, 0, len(ext))
        + ext
        + body
    )
