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

    The first error is raised, and nothing goes on then.
    """
    places: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(at_once))

    async def ask(item: K) -> T:
        async with places[_server(item)]:
            return await question(item)

    tasks = [asyncio.create_task(ask(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _server(item: MessageQueue | OffsetRange | str) -> str:
    match item:
        case MessageQueue():
            return item.broker_name
        case OffsetRange():
            return item.queue.broker_name
        case _:
            return ""
