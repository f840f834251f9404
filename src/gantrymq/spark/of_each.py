"""One question about each of many queues or topics, some of them at a time: a topic may have a thousand queues.

Java's brokers answer such questions in a pool with a queue of 10,000 places, and say that they are busy to what waits
longer than 5 s in it (`BrokerFastFailure`). All at once would also be the answers' bytes, where messages are pulled.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.offsets import OffsetRange

#: Questions to one server that are under way at once: 1,000 queues cost 16 round trips.
AT_ONCE = 64

K = TypeVar("K", bound=MessageQueue | OffsetRange | str)
T = TypeVar("T")


async def of_each(
    items: Iterable[K], question: Callable[[K], Coroutine[Any, Any, T]], at_once: int = AT_ONCE
) -> list[T]:
    """The answers, in order. Of queues so many are asked at once of each broker, of topics so many in all.

    Raises as `all_of` does.
    """
    places: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(at_once))

    async def ask(item: K) -> T:
        async with places[_server(item)]:
            return await question(item)

    return await all_of(ask(item) for item in items)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of these return, in order; they are under way at once.

    The first error is raised as it is, and nothing goes on then: not so with `asyncio.gather`.
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
