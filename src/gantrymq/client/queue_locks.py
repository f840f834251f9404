"""QueueLocks: the broker's locks on queues that are consumed in order: one consumer of a group has a queue at a time.

Source: client/impl/consumer/RebalanceImpl (lock, lockAll, unlock), ProcessQueue (isLockExpired).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.periodic import repeat
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

#: rocketmq.client.rebalance.lockInterval: how often locks are renewed.
RENEW_INTERVAL_S = 20.0
#: rocketmq.client.rebalance.lockMaxLiveTime: so long is a lock trusted; the broker keeps it 60 s.
LOCK_LIFE_S = 30.0


class QueueLocks:
    """The locks that this consumer has, renewed every 20 s."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        #: When each held queue was locked last (time.monotonic, time.time); 0 for one that was lost.
        self._locked: dict[MessageQueue, tuple[float, float]] = {}
        self._renewer = asyncio.create_task(repeat(RENEW_INTERVAL_S, self._renew))

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue may be consumed now."""
        return time.monotonic() - self._locked.get(queue, (float("-inf"), 0.0))[0] <= LOCK_LIFE_S

    def last_locked(self, queue: MessageQueue) -> float:
        """Seconds since the epoch; 0 for a queue that is not held."""
        return self._locked.get(queue, (0.0, 0.0))[1]

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Takes or renews locks; those that are this consumer's now. Failures are logged."""
        by_address = self._by_broker(queues)
        locked = await asyncio.gather(*(self._lock(address, wanted) for address, wanted in by_address.items()))
        return set().union(*locked)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Gives locks back; where that fails they expire on the broker."""
        by_address = self._by_broker(queues)
        for address, held in by_address.items():
            for queue in held:
                self._locked.pop(queue, None)
            try:
                await self._client.api.unlock_queues(address, self._group, self._client.client_id, held)
            except GantryError as e:
                log.warning("can't unlock %s for group %s: %s", sorted(held), self._group, e)

    async def close(self) -> None:
        """Gives all locks back."""
        self._renewer.cancel()
        await asyncio.gather(self._renewer, return_exceptions=True)
        await self.unlock(list(self._locked))

    async def _renew(self) -> None:
        held = list(self._locked)
        locked = await self.lock(held)
        if lost := sorted(set(held) - locked):
            log.warning("group %s can't renew the locks of %s", self._group, lost)

    async def _lock(self, address: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        try:
            locked = await self._client.api.lock_queues(address, self._group, self._client.client_id, queues)
        except GantryError as e:
            # What was held stays so until it expires.
            log.warning("can't lock %s for group %s: %s", sorted(queues), self._group, e)
            return set()
        now = time.monotonic(), time.time()
        for queue in queues:
            if queue in locked:
                self._locked[queue] = now
            elif queue in self._locked:
                self._locked[queue] = (float("-inf"), self._locked[queue][1])
        return locked & queues

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        by_address: defaultdict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            # Only a master has locks.
            if address := self._client.routes.master_address(queue.broker_name):
                by_address[address].add(queue)
        return by_address
