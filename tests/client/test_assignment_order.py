"""Several callers that wait for queues of one consumer continue in the order of their calls."""

from __future__ import annotations

import asyncio

from gantrymq.client.consuming.assignment import Assignment
from gantrymq.protocol.message import MessageQueue

_COUNT = 50


async def test_who_waits_longest_gets_on_first() -> None:
    assignment = Assignment(lambda queue: queue, None, None)
    queues: set[MessageQueue] = set()
    order: list[int] = []

    async def wait(number: int) -> None:
        await assignment.wait(lambda: queues, 60_000)
        order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(_COUNT)]
    # Each caller starts to wait in its first step.
    await asyncio.sleep(0)
    queues.add(MessageQueue("orders", "broker-a", 0))
    assignment.wake()
    await asyncio.gather(*waiting)
    assert order == list(range(_COUNT))
