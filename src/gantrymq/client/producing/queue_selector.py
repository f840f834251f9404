"""Queue selectors: how `Producer.send_with` picks a queue (client/producer/selector/*)."""

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

#: Picks one of the topic's writable queues for a message; the last argument is `send_with`'s `arg`.
QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    """Messages with equal `arg` go to one of the `queues`: that which Java's SelectMessageQueueByHash picks.

    A str is hashed as Java's String, a bool as Boolean, a float as Double, an int as Integer, or as Long where it is
    too large for one; of anything else its text is. Negative numbers have other hash codes as Longs: where Java's
    programs have Longs, give `ctypes.c_int64(number)`. Raises ClientError for None, which has no hash code.
    """
    # Java's % keeps the dividend's sign, and the selector takes the absolute value.
    return queues[abs(_hash_code(arg)) % len(queues)]


def select_randomly(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    """Any of the `queues`, whatever `arg` is."""
    return randomness.choice(queues)


def select_by_machine_room(rooms: Collection[str]) -> QueueSelector:
    """Any queue of the brokers in `rooms`, whose names are ROOM@NAME. Java's class of that name picks none at all."""

    def select(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in rooms]
        if not near:
            raise ClientError(f"topic {message.topic} has no queue on a broker in {', '.join(rooms)} (ROOM@NAME)")
        return randomness.choice(near)

    return select


def _hash_code(arg: Any) -> int:
    """`Object.hashCode`."""
    match arg:
        case None:
            raise ClientError("None has no hash code: give what tells messages apart that belong together")
        case bool():
            return 1231 if arg else 1237
        case int():
            return arg if -0x80000000 <= arg < 0x80000000 else _long_hash_code(arg)
        case float():
            # All that are no number are one to `Double.doubleToLongBits`.
            return _long_hash_code(unpack(">q", pack(">d", arg if arg == arg else nan))[0])
        case c_int64():
            return _long_hash_code(arg.value)
        case _:
            return string_hash_code(str(arg))


def _long_hash_code(n: int) -> int:
    folded = (n ^ (n & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF
    return folded - 0x100000000 if folded >= 0x80000000 else folded
