"""Queue selectors for `Producer.send` (`client/producer/selector/*`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from ctypes import c_int64
from math import nan
from struct import pack, unpack
from typing import Any

from gantrymq.errors import ClientError
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.system import randomness

#: Picks one of a topic's writable queues for a message: the `select` of `Producer.send`.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


_MULTIPLIER = 2862933555777941757
_U64 = (1 << 64) - 1


def select_by_hash(key: Any) -> QueueSelector:
    """Returns a selector by the hash code of `key`, as Java's SelectMessageQueueByHash.

    Messages with equal keys go to the same queue. A message with a `sharding_key` needs no selector.

    Types: str as Java's String, bool as Boolean, float as Double, int as Integer, or as Long if it is too large. Other
    values are hashed by their text. A negative number has a different hash code as a Long: if the Java programs use
    Long, pass `ctypes.c_int64(number)`.

    Raises:
        ClientError: `key` is None.
    """
    hash_code = _hash_code(key)
    return lambda queues, message: _at(queues, hash_code)


def queue_by_hash(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Returns the queue for messages with the sharding key or deduplication id `key`."""
    return _at(queues, string_hash_code(key))


def queue_of_lite_topic(lite_topic: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Returns the queue for messages of a lite topic, the same one as with the proxies of this project and of Java."""
    return sorted(queues)[consistent_hash(string_hash_code(lite_topic), len(queues))]


def consistent_hash(value: int, buckets: int) -> int:
    """Returns a bucket from 0 to buckets-1. If `buckets` changes, most values keep their bucket.

    Java's proxy uses the same hash, so a message group has the same queue with each proxy.
    Source: com.google.common.hash.Hashing (consistentHash).
    """
    state = value & _U64
    candidate = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _U64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following


def _at(queues: Sequence[MessageQueue], hash_code: int) -> MessageQueue:
    # Java's % keeps the sign of the dividend, and the Java selector takes the absolute value.
    return queues[abs(hash_code) % len(queues)]


def select_randomly(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """A selector that picks one of the `queues` at random."""
    return randomness.choice(queues)


def select_by_machine_room(rooms: Collection[str]) -> QueueSelector:
    """Returns a selector for a random queue of the brokers in `rooms`. Broker names have the form ROOM@NAME.

    Java's class of this name never selects a queue. This selector raises ClientError if no queue is in `rooms`.
    """

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in rooms]
        if not near:
            raise ClientError(f"topic {message.topic} has no queue on a broker in {', '.join(rooms)} (ROOM@NAME)")
        return randomness.choice(near)

    return select


def _hash_code(arg: Any) -> int:
    """`Object.hashCode`."""
    match arg:
        case None:
            raise ClientError("None has no hash code: pass a value that related messages share, such as an id")
        case bool():
            return 1231 if arg else 1237
        case int():
            return arg if -0x80000000 <= arg < 0x80000000 else _long_hash_code(arg)
        case float():
            # `Double.doubleToLongBits` has one value for all NaNs.
            return _long_hash_code(unpack(">q", pack(">d", arg if arg == arg else nan))[0])
        case c_int64():
            return _long_hash_code(arg.value)
        case _:
            return string_hash_code(str(arg))


def _long_hash_code(n: int) -> int:
    folded = (n ^ (n & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF
    return folded - 0x100000000 if folded >= 0x80000000 else folded
