"""What waits in the timer of each broker: messages to a time of their own, and what brokers note about pops.

All of it are records of one topic, in the order in which they came and not in that of their times. Its newest records
are looked at, as many as a page has time for; the answer says whether these were all that may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gantrymq.client.admin.messages import TOOLS_GROUP
from gantrymq.client.broker_api import PullStatus
from gantrymq.console.eye import Eye
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.properties import TIMER_OUT_MS
from gantrymq.protocol.topic_name import TIMER_TOPIC

R = TypeVar("R")

#: Records of one timer that are looked at, and how long that takes at most, s.
MAX_LOOKED = 2048
LOOKS_S = 0.6
#: Records and bytes of one pull.
_BATCH = 32
_PULL_BYTES = 256 * 1024


async def look_at_timer(
    eye: Eye, broker: str, address: str, read: Callable[[MessageExt, int], R | None], now_ms: int
) -> tuple[list[R], bool]:
    """What `read` makes of records (with their time, ms) that aren't due yet, the newest first; whether these are all.

    Raises a GantryError when the broker can't be asked.
    """
    queue = MessageQueue(TIMER_TOPIC, broker, 0)
    timeout_ms = eye.settings.timeout_ms
    first, end = await asyncio.gather(
        eye.admin.api.min_offset(address, TIMER_TOPIC, 0, timeout_ms),
        eye.admin.api.max_offset(address, TIMER_TOPIC, 0, timeout_ms),
    )
    until = asyncio.get_running_loop().time() + LOOKS_S
    first = max(first, 0)
    last = max(first, end - MAX_LOOKED)
    found: list[R] = []
    while end > last:
        if asyncio.get_running_loop().time() > until:
            break
        begin = max(end - _BATCH, last)
        for message in reversed(await read_queue(eye, address, queue, begin, end)):
            out_ms = message.properties.get(TIMER_OUT_MS, "")
            if out_ms.isascii() and out_ms.isdigit() and now_ms < int(out_ms[:18]):
                one = read(message, int(out_ms[:18]))
                if one is not None:
                    found.append(one)
        end = begin
    return found, end <= first


async def read_queue(eye: Eye, address: str, queue: MessageQueue, begin: int, end: int) -> list[MessageExt]:
    """The queue's records from `begin` up to `end`."""
    messages: list[MessageExt] = []
    while begin < end:
        result = await eye.admin.api.pull_at_once(
            address,
            queue,
            begin,
            min(end - begin, _BATCH),
            TOOLS_GROUP,
            max_bytes=_PULL_BYTES,
            timeout_ms=eye.settings.timeout_ms,
        )
        if result.status is PullStatus.FOUND:
            messages += [
                message for message in decode_messages(result.body, queue.broker_name) if message.queue_offset < end
            ]
        if result.next_begin_offset <= begin:
            break
        begin = result.next_begin_offset
    return messages
