"""Sends a request for each of many queues or topics, with a limit for the requests in flight.

A topic can have a thousand queues. Brokers of Apache process such requests in a thread pool with a wait queue for
10,000 requests, and reject a request after more than 5 s in this queue (`BrokerFastFailure`). The limit also bounds the
bytes of the responses to pulls.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from gantrymq.arrow.offsets import OffsetRange
from gantrymq.protocol.message import MessageQueue

#: Largest number of requests in flight to one server. Requests for 1,000 queues then take 16 round trips.
MAX_IN_FLIGHT = 64

K = TypeVar("K", bound=MessageQueue | OffsetRange | str)
T = TypeVar("T")


async def request_each(
    items: Iterable[K], request: Callable[[K], Coroutine[Any, Any, T]], max_in_flight: int = MAX_IN_FLIGHT
) -> list[T]:
    """Returns the response for each item, in order. Raises the first error, as `run_all` does.

    If the items are queues or ranges, the limit applies to each broker. If they are topics, it applies to all requests
    together.
    """
    limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(max_in_flight))

    async def limited(item: K) -> T:
        async with limits[_server(item)]:
            return await request(item)

    return await run_all(limited(item) for item in items)


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines concurrently, and returns their results in order.

    If one coroutine fails, cancels the others, which `asyncio.gather` does not do, and raises the first error.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _server(item: MessageQueue | OffsetRange | str) -> str:
    match item:
        case MessageQueue():
            return item.broker_name
        case OffsetRange():
            return item.queue.broker_name
        case _:
            return ""
