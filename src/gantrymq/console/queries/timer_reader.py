"""Reads the timer of a broker: timer messages, and the records of pops.

Both are records of one topic, ordered by arrival and not by due time. A page reads the newest records up to a limit,
and shows whether older records exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gantrymq.client.admin.base import transport_of
from gantrymq.client.broker_api import PullStatus
from gantrymq.console.cluster_view import ClusterView
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.properties import TIMER_OUT_MS
from gantrymq.protocol.topic_name import TIMER_TOPIC, TOOLS_GROUP

R = TypeVar("R")

#: Limits of one timer: records that are read, and the time to read them, s.
MAX_READ = 2048
READ_WITHIN_S = 0.6
#: Limits of one pull: records, and bytes.
_BATCH = 32
_PULL_BYTES = 256 * 1024


async def read_timer(
    view: ClusterView, broker: str, address: str, read: Callable[[MessageExt, int], R | None], now_ms: int
) -> tuple[list[R], bool]:
    """Reads records that are not due yet, newest first, and converts them with `read`.

    Returns the results, and True if all records of the timer were read. Raises GantryError if the broker does not
    respond.
    """
    queue = MessageQueue(TIMER_TOPIC, broker, 0)
    timeout_ms = view.settings.timeout_ms
    first, end = await asyncio.gather(
        transport_of(view.admin).api.min_offset(address, TIMER_TOPIC, 0, timeout_ms),
        transport_of(view.admin).api.max_offset(address, TIMER_TOPIC, 0, timeout_ms),
    )
    until = asyncio.get_running_loop().time() + READ_WITHIN_S
    first = max(first, 0)
    last = max(first, end - MAX_READ)
    found: list[R] = []
    while end > last:
        if asyncio.get_running_loop().time() > until:
            break
        begin = max(end - _BATCH, last)
        for message in reversed(await read_queue(view, address, queue, begin, end)):
            out_ms = message.properties.get(TIMER_OUT_MS, "")
            if out_ms.isascii() and out_ms.isdigit() and now_ms < int(out_ms[:18]):
                one = read(message, int(out_ms[:18]))
                if one is not None:
                    found.append(one)
        end = begin
    return found, end <= first


async def read_queue(view: ClusterView, address: str, queue: MessageQueue, begin: int, end: int) -> list[MessageExt]:
    """Returns the queue's records from offset `begin` up to `end`."""
    messages: list[MessageExt] = []
    while begin < end:
        result = await transport_of(view.admin).api.pull_at_once(
            address,
            queue,
            begin,
            min(end - begin, _BATCH),
            TOOLS_GROUP,
            max_bytes=_PULL_BYTES,
            timeout_ms=view.settings.timeout_ms,
        )
        if result.status is PullStatus.FOUND:
            messages += [
                message for message in decode_messages(result.body, queue.broker_name) if message.queue_offset < end
            ]
        if result.next_begin_offset <= begin:
            break
        begin = result.next_begin_offset
    return messages
