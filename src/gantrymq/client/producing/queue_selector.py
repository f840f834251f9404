"""Queue selectors: how `Producer.send_with` picks a queue (client/producer/selector/*)."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gantrymq.errors import ClientError
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import Message, MessageQueue

#: Picks one of the topic's writable queues for a message; the last argument is `send_with`'s `arg`.
QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    """Messages with equal `arg` go to one queue: the one that Java's SelectMessageQueueByHash picks.

    An int is hashed as a Java Integer, or as a Long where it is too large for one; of anything else its text is.
    """
    hash_code = _int_hash_code(arg) if isinstance(arg, int) else string_hash_code(str(arg))
    # Java's % keeps the dividend's sign, and the selector takes the absolute value.
    return queues[abs(hash_code) % len(queues)]


def select_randomly(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    """Any queue."""
    return random.choice(queues)


def select_by_machine_room(rooms: Collection[str]) -> QueueSelector:
    """Any queue of the brokers in `rooms`, whose names are ROOM@NAME. Java's class of that name picks none at all."""

    def select(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in rooms]
        if not near:
            raise ClientError(f"topic {message.topic} has no queue on a broker in {', '.join(rooms)} (ROOM@NAME)")
        return random.choice(near)

    return select


def _int_hash_code(n: int) -> int:
    if -0x80000000 <= n < 0x80000000:
        return n
    folded = (n ^ (n & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF
    return folded - 0x100000000 if folded >= 0x80000000 else folded
