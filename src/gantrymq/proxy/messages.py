"""Conversion of messages between brokers and gRPC clients: MessageExt to protobuf, protobuf to properties and body.

The package `producer` validates clients' messages before the conversion. Sources: proxy/grpc/v2/common/GrpcConverter,
proxy/grpc/v2/producer/SendMessageActivity (buildMessageProperty, buildSysFlag), common/message/MessageConst.
"""

from __future__ import annotations

import zlib
from hashlib import md5

from google.protobuf.timestamp_pb2 import Timestamp

from gantrymq.errors import CompressionError
from gantrymq.protocol import properties as names
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE, CompressionType, compression_flag
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from gantrymq.proxy.times import timestamp_ms, to_timestamp
from gantrymq.proxy.v2 import definition_pb2 as pb

BUYER_ID = "BUYER_ID"
BORN_HOST = "__BORNHOST"
TRACE_CONTEXT = "TRACE_CONTEXT"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

#: System properties (MessageConst.STRING_HASH_SET), which clients neither receive nor set. As with Java's proxy, other
#: properties of RocketMQ, for example the sharding key, count as user properties.
RESERVED = frozenset(
    {
        names.TRACE_SWITCH,
        names.MSG_REGION,
        names.KEYS,
        names.TAGS,
        names.WAIT_STORE_MSG_OK,
        names.DELAY_TIME_LEVEL,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED,
        names.PRODUCER_GROUP,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        BUYER_ID,
        names.ORIGIN_MESSAGE_ID,
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        names.RECONSUME_TIME,
        names.UNIQUE_KEY,
        names.MAX_RECONSUME_TIMES,
        names.CONSUME_START_TIMESTAMP,
        names.POP_CK,
        "POP_CK_OFFSET",
        names.FIRST_POP_TIME,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        names.INSTANCE_ID,
        names.CORRELATION_ID,
        names.MESSAGE_REPLY_TO_CLIENT,
        names.MESSAGE_TTL,
        names.REPLY_ARRIVE_TIME,
        names.PUSH_REPLY_TIME,
        names.CLUSTER,
        names.MESSAGE_TYPE,
        "INNER_MULTI_QUEUE_OFFSET",
        names.LITE_TOPIC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELIVER_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_OUT_MS,
        names.TIMER_DEL_UNIQKEY,
        "TIMER_DELAY_LEVEL",
        BORN_HOST,
        names.BORN_TIMESTAMP,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        names.CRC32,
    }
)
_DELAYS = (names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
#: End of the year 9999, ms. Clients reject a whole message with a later timestamp (Timestamps.checkValid).
_LAST_MS = 253_402_300_799_999
_MAX_INT32 = (1 << 31) - 1
#: Window bits with which zlib reads gzip data.
_GZIP_BITS = 31


# -- to clients -------------------------------------------------------------------------------------------------------


def to_protobuf(message: MessageExt) -> pb.Message:
    """Converts a stored message for a client. The body is decompressed.

    Java's proxy sends every compressed body unchanged and marks it as GZIP, but some clients read only real gzip, and
    only Java's client reads lz4 and zstd. This proxy leaves only damaged bodies unchanged. Clients report such a body
    as corrupted.
    """
    properties = message.properties
    encoding = pb.IDENTITY
    try:
        body = message.body
    except CompressionError:
        body, encoding = message.stored_body, pb.GZIP
    system = pb.SystemProperties(
        message_id=message.msg_id,
        # The digest is an MD5, because all clients write it in the same form. Clients write a CRC32 in different forms.
        body_digest=pb.Digest(type=pb.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=message_type(properties),
        born_timestamp=timestamp(message.born_timestamp),
        born_host=properties.get(BORN_HOST) or message.born_host.rpartition(":")[0],
        store_timestamp=timestamp(message.store_timestamp),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=min(max(message.reconsume_times, 0) + 1, _MAX_INT32),
    )
    if (tag := properties.get(names.TAGS)) is not None:
        system.tag = tag
    if keys := properties.get(names.KEYS):
        system.keys.extend(names.split_keys(keys))
    if (group := properties.get(names.SHARDING_KEY)) is not None:
        system.message_group = group
    if (lite_topic := properties.get(names.LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    if (priority := names.priority_of(properties.get(names.PRIORITY, ""))) >= 0:
        system.priority = priority
    if (handle := properties.get(names.POP_CK)) is not None:
        system.receipt_handle = handle
    if (context := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = context
    if (due_ms := _delivery_ms(properties)) is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due_ms))
    if (topic := properties.get(DLQ_ORIGIN_TOPIC)) and (msg_id := properties.get(DLQ_ORIGIN_MESSAGE_ID)):
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = topic, msg_id
    return pb.Message(
        topic=resource(message.topic),
        user_properties={name: value for name, value in properties.items() if name not in RESERVED},
        system_properties=system,
        body=body,
    )


def message_type(properties: dict[str, str]) -> pb.MessageType:
    """Returns the type of a message with these properties."""
    if properties.get(names.TRANSACTION_PREPARED) == "true":
        return pb.TRANSACTION
    if any(name in properties for name in _DELAYS):
        return pb.DELAY
    if names.SHARDING_KEY in properties:
        return pb.FIFO
    if names.PRIORITY in properties:
        return pb.PRIORITY
    return pb.LITE if names.LITE_TOPIC in properties else pb.NORMAL


def _delivery_ms(properties: dict[str, str]) -> int | None:
    """Returns the delivery time of a delayed message, ms: the producer's value, otherwise the broker's."""
    text = properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def timestamp(ms: int) -> Timestamp:
    """Converts milliseconds since the epoch. A value that clients reject becomes the nearest valid one."""
    return to_timestamp(min(max(ms, 0), _LAST_MS))


def resource(name: str) -> pb.Resource:
    """Converts the name of a topic or group. The part before a % is its namespace (NamespaceUtil)."""
    if "%" not in name or is_system_topic(name):
        return pb.Resource(name=name)
    prefix = next((prefix for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX) if name.startswith(prefix)), "")
    namespace, separator, bare = name[len(prefix) :].partition("%")
    if not namespace or not separator:
        return pb.Resource(name=name)
    return pb.Resource(resource_namespace=namespace, name=prefix + bare)


# -- from clients -----------------------------------------------------------------------------------------------------


def to_properties(message: pb.Message, producer_group: str, peer: str) -> dict[str, str]:
    """Returns the properties of a client's message for the broker. `peer` replaces a missing address of the client."""
    system = message.system_properties
    properties = dict(message.user_properties)
    if system.tag:
        properties[names.TAGS] = system.tag
    if system.keys:
        properties[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    properties[names.UNIQUE_KEY] = system.message_id
    properties[names.PRODUCER_GROUP] = producer_group
    if system.message_type == pb.TRANSACTION:
        properties[names.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[names.TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    if system.HasField("priority"):
        properties[names.PRIORITY] = str(system.priority)
    if system.lite_topic:
        properties[names.LITE_TOPIC] = system.lite_topic
    if system.message_group:
        properties[names.SHARDING_KEY] = system.message_group
    if system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    if born_host := system.born_host.strip() or peer:
        properties[BORN_HOST] = born_host
    if system.HasField("born_timestamp"):
        properties[names.BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    return properties


def to_body(message: pb.Message, max_size: int = MAX_DECOMPRESSED_SIZE) -> tuple[bytes, int]:
    """Returns the body to store and its bits of sysFlag. Raises CompressionError if the compressed body is damaged.

    A gzip body is stored as zlib without new compression: the two formats differ only in their headers. Java's proxy
    stores the gzip bytes but marks them as zlib, so consumers of 4.x cannot read them.
    """
    body = message.body
    if message.system_properties.body_encoding != pb.GZIP:
        return body, 0
    if body[:2] != b"\x1f\x8b":
        # Clients that follow old Java clients also mark zlib as GZIP.
        _inflate(zlib.decompressobj(), body, max_size)
        return body, compression_flag(CompressionType.ZLIB)
    plain = _inflate(zlib.decompressobj(_GZIP_BITS), body, max_size)
    deflated = body[_gzip_header_size(body) : -8]
    return b"\x78\x9c" + deflated + zlib.adler32(plain).to_bytes(4), compression_flag(CompressionType.ZLIB)


def _inflate(inflater: zlib._Decompress, body: bytes, max_size: int) -> bytes:
    """Decompresses a whole body. Raises CompressionError if it is damaged or longer than `max_size`."""
    try:
        plain = inflater.decompress(body, max_size + 1)
    except zlib.error as e:
        raise CompressionError(f"body of {len(body)} bytes doesn't decompress: {e}") from e
    if len(plain) > max_size:
        raise CompressionError(f"body of {len(body)} bytes decompresses to more than {max_size} bytes")
    if not inflater.eof or inflater.unused_data:
        raise CompressionError(f"body of {len(body)} bytes is not one compressed whole")
    return plain


def _gzip_header_size(body: bytes) -> int:
    """Returns the size of a complete header in bytes (RFC 1952, 2.3). The body was decompressed before."""
    flags, at = body[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(body[at : at + 2], "little")
    for bit in (8, 16):
        if flags & bit:
            at = body.index(0, at) + 1
    return at + (2 if flags & 2 else 0)
