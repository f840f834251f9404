"""Rebalancer: asks again and again who is in the group, and says which queues are this consumer's.

Source: client/impl/consumer/RebalanceService and RebalanceImpl (rebalanceByTopic).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.rebalance import AllocateStrategy
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

log = logging.getLogger(__name__)

#: rocketmq.client.rebalance.waitInterval.
INTERVAL_S = 20.0
#: rocketmq.client.rebalance.minInterval: when something was missing.
RETRY_INTERVAL_S = 1.0

#: Called with a topic and this consumer's queues of it; raises a GantryError when a queue couldn't be taken.
Assign = Callable[[str, set[MessageQueue]], Awaitable[None]]


class Rebalancer:
    """Calls `assign` for each of `topics` at the start, when the group changes, and every 20 s."""

    def __init__(
        self, client: ClientInstance, group: str, topics: Iterable[str], allocate: AllocateStrategy, assign: Assign
    ) -> None:
        self._client = client
        self._group = group
        self._topics = list(topics)
        self._allocate = allocate
        self._assign = assign
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """Rebalances now: the group's consumers have changed."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            balanced = True
            for topic in self._topics:
                try:
                    await self._rebalance(topic)
                except NoRouteInfo as e:
                    # A retry topic comes into being when the broker hears of the group.
                    level = logging.DEBUG if topic.startswith(RETRY_TOPIC_PREFIX) else logging.WARNING
                    log.log(level, "group %s: %s", self._group, e)
                    balanced = False
                except GantryError as e:
                    log.warning("can't rebalance topic %s in group %s: %s", topic, self._group, e)
                    balanced = False
                except Exception:
                    # The allocate strategy may be the user's.
                    log.exception("can't rebalance topic %s in group %s", topic, self._group)
                    balanced = False
            try:
                async with asyncio.timeout(INTERVAL_S if balanced else RETRY_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _rebalance(self, topic: str) -> None:
        client = self._client
        queues = await client.routes.read_queues(topic)
        await client.greet_new_brokers()
        brokers = {queue.broker_name for queue in queues}
        addresses = [address for name in brokers if (address := client.routes.broker_address(name))]
        if not addresses:
            raise NoRouteInfo(topic, client.routes.name_servers)
        address = random.choice(addresses)
        client_ids = await client.api.consumer_ids(address, self._group)
        if client.client_id not in client_ids:
            # The broker has forgotten this consumer; the queues stay as they are until it knows better.
            await client.greet_again(address)
            client_ids = await client.api.consumer_ids(address, self._group)
            if client.client_id not in client_ids:
                raise BrokerError(1, f"group {self._group} doesn't list this consumer", address)
        await self._assign(topic, set(self._allocate(client.client_id, client_ids, queues)))
