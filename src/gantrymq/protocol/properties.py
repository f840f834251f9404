"""Encodes and decodes message properties: `name \\x01 value \\x02`, repeated. Also has RocketMQ's property names.

Source: common/message/MessageDecoder (string2messageProperties, messageProperties2String), MessageConst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gantrymq.errors import IllegalMessage

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
#: Longest encoded properties, in bytes: a record has their length as an int16.
MAX_PROPERTIES_LENGTH = 32767

KEYS = "KEYS"
TAGS = "TAGS"
WAIT_STORE_MSG_OK = "WAIT"
DELAY_TIME_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_SWITCH = "TRACE_ON"
UNIQUE_KEY = "UNIQ_KEY"
#: Format of the encoded property with the id of a message.
UNIQUE_KEY_PAIR = b"UNIQ_KEY\x01%b\x02"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
INSTANCE_ID = "INSTANCE_ID"
CLUSTER = "CLUSTER"
SHARDING_KEY = "__SHARDINGKEY"
LITE_TOPIC = "__LITE_TOPIC"
PRIORITY = "_SYS_MSG_PRIORITY_"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
CORRELATION_ID = "CORRELATION_ID"
MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
MESSAGE_TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
REPLY_ARRIVE_TIME = "ARRIVE_TIME"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
#: Of `gantry mirror`: the message from which a copy was made, and the clusters that the message has been in.
MIRROR_ORIGIN = "GANTRY_MIRROR"
MIRROR_PATH = "GANTRY_MIRROR_PATH"
#: A broker stores a repeated message with this id only once, if the topic has a deduplication window.
DEDUPLICATE_ID = "GANTRY_DEDUPLICATE_ID"
#: Checksum of the whole record, in its last property (enabledAppendPropCRC).
CRC32 = "__CRC32#"

#: Largest length of a DEDUPLICATE_ID, in bytes.
MAX_DEDUPLICATE_ID_LENGTH = 128
#: Largest priority.
MAX_PRIORITY = (1 << 31) - 1
_PRIORITY_TEXT = re.compile(r"[+-]?[0-9]{1,10}")

#: Separates the keys in KEYS (`MessageConst.KEY_SEPARATOR`). Other white space is part of a key.
KEY_SEPARATOR = " "


def priority_of(text: str) -> int:
    """Returns the priority in a value of PRIORITY; -1 if it is not a 32-bit number (`Message.getPriority`)."""
    if not _PRIORITY_TEXT.fullmatch(text):
        return -1
    priority = int(text)
    return priority if -1 <= priority <= MAX_PRIORITY else -1


def split_keys(keys: str) -> list[str]:
    """Returns the keys in a value of KEYS."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def encode_properties(properties: dict[str, str]) -> bytes:
    """Returns the encoded properties, each one with a final \\x02.

    Raises IllegalMessage if a name or value contains a separator or is no valid Unicode text.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count(PROPERTY_SEPARATOR) != len(properties) or (
        text.count(NAME_VALUE_SEPARATOR) != len(properties) and any(NAME_VALUE_SEPARATOR in name for name in properties)
    ):
        raise IllegalMessage("a property's name holds \\x01 or \\x02, or its value \\x02: they separate the properties")
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise IllegalMessage(f"a property is no Unicode text: {e}") from e


def encode_fitting(fields: dict[str, str], limit: int, dispensable: Iterable[str], original: bytes) -> bytes:
    """Returns the encoded properties in at most `limit` bytes.

    The record's checksum is removed first if necessary, then the properties in `dispensable`, in order. If that is not
    enough, returns `original`, the properties as first stored. These fit: only the decoding of invalid UTF-8 can make
    properties longer.
    """
    encoded = encode_properties(fields)
    for name in (CRC32, *dispensable):
        if len(encoded) <= limit:
            return encoded
        fields = {other: value for other, value in fields.items() if other != name}
        encoded = encode_properties(fields)
    return encoded if len(encoded) <= limit else original


def decode_properties(raw: bytes) -> dict[str, str]:
    """Returns the properties as a dictionary. As in Java, entries without a name or a value are skipped."""
    properties: dict[str, str] = {}
    for item in raw.decode(errors="replace").split(PROPERTY_SEPARATOR):
        name, separator, value = item.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Returns one property's value from the encoded properties without decoding the others. None if absent or empty.

    If a name occurs twice, this function returns the first value; `decode_properties` returns the last. No client
    writes a name twice.
    """
    prefix = name + b"\x01"
    if raw.startswith(prefix):
        start = len(prefix)
    else:
        at = raw.find(b"\x02" + prefix)
        if at < 0:
            return None
        start = at + 1 + len(prefix)
    end = raw.find(b"\x02", start)
    return (raw[start:end] if end >= 0 else raw[start:]) or None


def is_waited_for(raw: bytes) -> bool:
    """Returns true if the response must wait until the message is stored safely (`Message.isWaitStoreMsgOK`)."""
    wait = find_property(raw, b"WAIT")
    return wait is None or wait.lower() == b"true"


def has_property(raw: bytes, name: bytes) -> bool:
    """Returns true if the property exists, even if it is empty."""
    prefix = name + b"\x01"
    return raw.startswith(prefix) or b"\x02" + prefix in raw


def without_property(raw: bytes, name: bytes) -> bytes:
    """Returns the properties without the property `name` (`MessageUtils.deleteProperty`). Each one ends with \\x02."""
    if not has_property(raw, name):
        return raw
    prefix = name + b"\x01"
    return b"".join([item + b"\x02" for item in raw.split(b"\x02") if item and not item.startswith(prefix)])
