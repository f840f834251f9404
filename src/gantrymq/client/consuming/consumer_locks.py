"""ConsumerLocks: queue locks on the broker for orderly consumption. Only one consumer of a group has a queue's lock.

Source: client/impl/consumer/RebalanceImpl (lock, lockAll, unlock), ProcessQueue (isLockExpired).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from gantrymq.background.repeating import Repeating
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.log_texts import queues_by_topic
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.system import clock

log = peer_log(__name__)

#: Interval of renewals (rocketmq.client.rebalance.lockInterval), s.
RENEW_INTERVAL_S = 20.0
#: Time after which a lock that is not renewed counts as lost (rocketmq.client.rebalance.lockMaxLiveTime), s. The broker
#: keeps it for 60 s.
LOCK_LIFE_S = 30.0
_NEVER = (float("-inf"), 0.0)


class ConsumerLocks:
    """The locks of this consumer. They are renewed every 20 s."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        #: Time of each queue's last lock (monotonic, time). _NEVER if the queue is not locked, or its lock was lost.
        self._locked: dict[MessageQueue, tuple[float, float]] = {}
        #: Queues whose lock another consumer had in the meantime. Their local state is outdated.
        self._lost: set[MessageQueue] = set()
        #: Queues of pending lock requests.
        self._asked: set[MessageQueue] = set()
        self._renewer = Repeating(f"the renewal of the locks of group {group}", self.renew, RENEW_INTERVAL_S)
        self._renewer.start()

    def holds(self, queue: MessageQueue) -> bool:
        """Returns whether the queue may be consumed."""
        return clock.monotonic() - self._locked.get(queue, _NEVER)[0] <= LOCK_LIFE_S

    def was_lost(self, queue: MessageQueue) -> bool:
        """Returns true if another consumer had the lock in the meantime. The queue must then restart."""
        return queue in self._lost

    def taken_anew(self, queue: MessageQueue) -> None:
        """Records that the queue restarts at the group's committed offset."""
        self._lost.discard(queue)

    def last_locked(self, queue: MessageQueue) -> float:
        """Returns the time of the last lock, in seconds since the epoch; 0 if the queue is not locked."""
        return self._locked.get(queue, _NEVER)[1]

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Acquires or renews locks and returns the locked queues. Errors are logged."""
        wanted = set(queues)
        new = wanted - self._locked.keys()
        self._locked |= dict.fromkeys(new, _NEVER)
        locked: set[MessageQueue] = set()
        try:
            locked = await self._lock_at_brokers(wanted)
        finally:
            for queue in new - locked:
                self._locked.pop(queue, None)
            self._lost -= new
        return locked

    async def renew(self) -> None:
        """Renews all locks. A lock that the broker refuses counts as lost (`RebalanceImpl.lockAll`)."""
        held = set(self._locked)
        locked = await self._lock_at_brokers(held)
        if lost := (held - locked) & self._locked.keys():
            log.warning("group %s can't renew the locks of %s", self._group, queues_by_topic(lost))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Releases locks. If the request fails, the locks expire on the broker."""
        given_back = list(queues)
        for queue in given_back:
            self._locked.pop(queue, None)
            self._lost.discard(queue)
        for address, held in self._by_broker(given_back):
            try:
                await self._client.api.unlock_queues(address, self._group, self._client.client_id, held)
            except Exception as e:
                # Any error, because hooks are user code. The queue is revoked in any case.
                log.warning("can't unlock %s for group %s: %s", queues_by_topic(held), self._group, e)

    async def close(self, timeout_s: float) -> None:
        """Releases all locks, within at most `timeout_s` seconds."""
        await self._renewer.stop()
        try:
            async with asyncio.timeout(timeout_s):
                # Includes queues whose lock request got no response, because the broker may have locked them.
                await self.unlock(self._locked.keys() | self._asked)
        except TimeoutError:
            log.info("not all locks of group %s were given back: they expire in a minute", self._group)

    async def _lock_at_brokers(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        locked = await asyncio.gather(*(self._lock(address, wanted) for address, wanted in self._by_broker(queues)))
        return set().union(*locked)

    async def _lock(self, address: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        self._asked |= queues
        try:
            locked = await self._client.api.lock_queues(address, self._group, self._client.client_id, queues)
        except GantryError as e:
            # Existing locks stay valid until they expire.
            for topic in {queue.topic for queue in queues}:
                self._client.report_failure(topic, e)
            self._client.failure_log.report(f"can't lock {queues_by_topic(queues)} for group {self._group}", e)
            return set()
        self._asked -= queues
        now = clock.monotonic(), clock.time()
        wanted = queues & self._locked.keys()
        # A broker refuses a lock if another consumer has it.
        self._lost |= wanted - locked
        for queue in wanted:
            self._locked[queue] = now if queue in locked else (_NEVER[0], self._locked[queue][1])
        # The lock was released during this request. The broker may have processed the unlock first, so unlock again.
        await self.unlock(locked & queues - wanted)
        return locked & wanted

    def _by_broker(self, queues: Iterable[MessageQueue]) -> list[tuple[str, set[MessageQueue]]]:
        """Returns the address of each broker's master and the broker's queues.

        Only masters have locks. Behind a proxy, all brokers have the same address.
        """
        by_name: defaultdict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            by_name[queue.broker_name].add(queue)
        return [(address, held) for name, held in by_name.items() if (address := self._master_address(name))]

    def _master_address(self, broker_name: str) -> str | None:
        client = self._client
        return client.routes.master_address(broker_name) or client.connected_former_master(broker_name)
