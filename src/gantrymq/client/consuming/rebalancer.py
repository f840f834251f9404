"""Updates the queues of this consumer regularly (RebalanceService, RebalanceImpl.rebalanceByTopic)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Protocol

from gantrymq.background.repeating import Repeating
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.rebalance import AllocateStrategy
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, RouteNotReady
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.system import randomness
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Interval of rebalances (rocketmq.client.rebalance.waitInterval), s.
INTERVAL_S = 20.0
#: Interval after an incomplete rebalance (rocketmq.client.rebalance.minInterval), s.
RETRY_INTERVAL_S = 1.0
#: Shortest interval, even if the consumers of the group change more often, s.
MIN_INTERVAL_S = 0.1

#: Called with a topic and this consumer's queues of it. Raises a GantryError if a queue cannot be assigned.
Assign = Callable[[str, set[MessageQueue]], Awaitable[None]]


class Share(Protocol):
    """Determines this consumer's queues of a topic. The methods raise GantryErrors."""

    async def rebalance(self, topic: str) -> None:
        """Assigns the queues that belong to this consumer, and revokes the others."""

    async def give_up(self, topic: str) -> None:
        """Revokes all queues of the topic."""


class Rebalancer:
    """Rebalances each topic at the start, when the group, a subscription or a route changes, and every 20 s.

    The owner may modify `topics`; it then calls `changed`.
    """

    def __init__(self, client: ClientInstance, group: str, topics: Collection[str], share: Share) -> None:
        self._client = client
        self._group = group
        self._topics = topics
        self._share = share
        self._changed: set[str] = set()
        self._began = -inf
        self._job = Repeating(
            f"the rebalance of group {group}", self._rebalance, INTERVAL_S, after_error_s=RETRY_INTERVAL_S
        )

    def start(self) -> None:
        self._client.routes.watch(self._route_changed)
        self._job.start(0.0)

    async def stop(self) -> None:
        await self._job.stop()

    def wake(self) -> None:
        """Rebalances because the group has changed: at once, or after MIN_INTERVAL_S since the last rebalance."""
        self._job.wake(max(self._began + MIN_INTERVAL_S - monotonic(), 0.0))

    def _route_changed(self, topic: str) -> None:
        if topic in self._topics:
            self.wake()

    def changed(self, topic: str) -> None:
        """Handles a new, changed or removed subscription: sends heartbeats and restarts the topic's queues."""
        self._changed.add(topic)
        self._job.wake()

    async def _rebalance(self) -> float | None:
        """Returns the pause before the next rebalance, in seconds; None for the default."""
        balanced = True
        self._began = monotonic()
        if self._changed:
            await self._client.heartbeat()
        for topic in list(self._changed):
            self._changed.discard(topic)
            if not await self._tried(topic, self._share.give_up):
                self._changed.add(topic)
                balanced = False
        for topic in list(self._topics):
            balanced &= await self._tried(topic, self._share.rebalance)
        return None if balanced else RETRY_INTERVAL_S

    async def _tried(self, topic: str, work: Callable[[str], Awaitable[None]]) -> bool:
        """Returns whether `work` on the topic succeeded. Failures are logged."""
        try:
            await work(topic)
        except NoRouteInfo as e:
            # The broker creates a retry topic when it receives the first heartbeat of the group.
            if not topic.startswith(RETRY_TOPIC_PREFIX):
                self._client.failure_log.report(f"group {self._group}", e)
        except GantryError as e:
            self._client.report_failure(topic, e)
            self._client.failure_log.report(f"can't rebalance topic {topic} in group {self._group}", e)
        except Exception:
            # The strategy can be user code.
            log.exception("can't rebalance topic %s in group %s", topic, self._group)
        else:
            return True
        return False


class ShareAll:
    """Assigns all queues to every consumer of the group (`MessageModel.BROADCASTING`)."""

    def __init__(self, client: ClientInstance, assign: Assign) -> None:
        self._client = client
        self._assign = assign

    async def rebalance(self, topic: str) -> None:
        queues = await self._client.routes.read_queues(topic)
        await self._client.greet_new_brokers()
        await self._assign(topic, set(queues))

    async def give_up(self, topic: str) -> None:
        await self._assign(topic, set())


class ShareInGroup:
    """Shares the queues with the group. Each consumer computes its own queues."""

    def __init__(self, client: ClientInstance, group: str, allocate: AllocateStrategy, assign: Assign) -> None:
        self._client = client
        self._group = group
        self._allocate = allocate
        self._assign = assign

    async def rebalance(self, topic: str) -> None:
        client = self._client
        queues = await client.routes.read_queues(topic)
        if client.is_postponed:
            raise RouteNotReady(topic, client.routes.name_servers, client.routes.awaited(topic))
        await client.greet_new_brokers()
        address = any_broker(client, topic, queues)
        client_ids = await client.api.consumer_ids(address, self._group)
        if client.client_id not in client_ids:
            # The broker has lost this consumer: send a heartbeat, and keep the queues until the broker lists it.
            await client.greet_again(address)
            client_ids = await client.api.consumer_ids(address, self._group)
            if client.client_id not in client_ids:
                raise BrokerError(1, f"group {self._group} doesn't list this consumer", address)
        await self._assign(topic, set(self._allocate(client.client_id, client_ids, queues)))

    async def give_up(self, topic: str) -> None:
        await self._assign(topic, set())


def any_broker(client: ClientInstance, topic: str, queues: Collection[MessageQueue]) -> str:
    """Returns HOST:PORT of a random broker of the queues. Raises NoRouteInfo."""
    brokers = {queue.broker_name for queue in queues}
    addresses = [address for name in brokers if (address := client.routes.broker_address(name))]
    if not addresses:
        raise NoRouteInfo(topic, client.routes.name_servers)
    return randomness.choice(addresses)
