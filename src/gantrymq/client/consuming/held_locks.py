"""HeldLocks: the broker's locks on queues that are consumed in order: one consumer of a group has a queue at a time.

Source: client/impl/consumer/RebalanceImpl (lock, lockAll, unlock), ProcessQueue (isLockExpired).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from gantrymq.background.repeating import Repeating
from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.system import clock

log = peer_log(__name__)

#: rocketmq.client.rebalance.lockInterval: how often locks are renewed.
RENEW_INTERVAL_S = 20.0
#: rocketmq.client.rebalance.lockMaxLiveTime: so long is a lock trusted; the broker keeps it 60 s.
LOCK_LIFE_S = 30.0
_NEVER = (float("-inf"), 0.0)


class HeldLocks:
    """The locks that this consumer has, renewed every 20 s."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        #: When each wanted queue was locked last (monotonic, time); _NEVER for one that is not, or was lost.
        self._locked: dict[MessageQueue, tuple[float, float]] = {}
        #: Those that another consumer had meanwhile: what is known of them here is old.
        self._lost: set[MessageQueue] = set()
        #: Those of requests that have no answer yet, or never got one.
        self._asked: set[MessageQueue] = set()
        self._renewer = Repeating(f"the renewal of the locks of group {group}", self._renew_all, RENEW_INTERVAL_S)
        self._renewer.start()

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue may be consumed now."""
        return clock.monotonic() - self._locked.get(queue, _NEVER)[0] <= LOCK_LIFE_S

    def was_lost(self, queue: MessageQueue) -> bool:
        """Whether another consumer has had it since it was taken: it must be taken anew, where that one has got to."""
        return queue in self._lost

    def taken_anew(self, queue: MessageQueue) -> None:
        """It is consumed from the group's offset on."""
        self._lost.discard(queue)

    def last_locked(self, queue: MessageQueue) -> float:
        """Seconds since the epoch; 0 for a queue that is not held."""
        return self._locked.get(queue, _NEVER)[1]

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Takes or renews locks; those that are this consumer's now. Failures are logged."""
        wanted = set(queues)
        new = wanted - self._locked.keys()
        self._locked |= dict.fromkeys(new, _NEVER)
        locked: set[MessageQueue] = set()
        try:
            locked = await self._renew(wanted)
        finally:
            for queue in new - locked:
                self._locked.pop(queue, None)
            self._lost -= new
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Gives locks back; where that fails they expire on the broker."""
        given_back = list(queues)
        for queue in given_back:
            self._locked.pop(queue, None)
            self._lost.discard(queue)
        for address, held in self._by_broker(given_back):
            try:
                await self._client.api.unlock_queues(address, self._group, self._client.client_id, held)
            except Exception as e:
                # Whatever it is (hooks are the user's), the queue is given up.
                log.warning("can't unlock %s for group %s: %s", sorted(held), self._group, e)

    async def close(self, timeout_s: float) -> None:
        """Gives all locks back, for so long at most."""
        await self._renewer.stop()
        try:
            async with asyncio.timeout(timeout_s):
                # Those, too, that were asked for without an answer: the broker may have locked them.
                await self.unlock(self._locked.keys() | self._asked)
        except TimeoutError:
            log.info("not all locks of group %s were given back: they expire in a minute", self._group)

    async def _renew_all(self) -> None:
        held = set(self._locked)
        locked = await self._renew(held)
        if lost := sorted((held - locked) & self._locked.keys()):
            log.warning("group %s can't renew the locks of %s", self._group, lost)

    async def _renew(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        locked = await asyncio.gather(*(self._lock(address, wanted) for address, wanted in self._by_broker(queues)))
        return set().union(*locked)

    async def _lock(self, address: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        self._asked |= queues
        try:
            locked = await self._client.api.lock_queues(address, self._group, self._client.client_id, queues)
        except GantryError as e:
            # What was held stays so until it expires.
            for topic in {queue.topic for queue in queues}:
                self._client.report_failure(topic, e)
            self._client.troubles.tell(f"can't lock {sorted(queues)} for group {self._group}", e)
            return set()
        self._asked -= queues
        now = clock.monotonic(), clock.time()
        wanted = queues & self._locked.keys()
        # Who refuses it has given it to another.
        self._lost |= wanted - locked
        for queue in wanted:
            self._locked[queue] = now if queue in locked else (_NEVER[0], self._locked[queue][1])
        # Those that were given back meanwhile are nobody's here; the broker may have got the unlock before the lock.
        await self.unlock(locked & queues - wanted)
        return locked & wanted

    def _by_broker(self, queues: Iterable[MessageQueue]) -> list[tuple[str, set[MessageQueue]]]:
        """Each broker's queues, and its master's address: only that has locks. Behind a proxy all have one address."""
        by_name: defaultdict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            by_name[queue.broker_name].add(queue)
        routes = self._client.routes
        return [(address, held) for name, held in by_name.items() if (address := routes.master_address(name))]
