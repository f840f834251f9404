"""ShareByBroker: the broker assigns queues to this consumer, and decides whether it pulls or pops them.

Source: client/impl/consumer/RebalanceImpl (getRebalanceResultFromBroker, updateMessageQueueAssignment).
"""

from __future__ import annotations

from collections.abc import MutableMapping

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.rebalance import AllocateStrategy, allocate_averagely, allocate_by_circle
from gantrymq.client.consuming.rebalancer import Assign, any_broker
from gantrymq.client.popping.pop_api import PopApi
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.pop import MODE_POP
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: Strategies that brokers support, and Java's names for them.
STRATEGY_NAMES: dict[AllocateStrategy, str] = {allocate_averagely: "AVG", allocate_by_circle: "AVG_BY_CIRCLE"}


class ShareByBroker:
    """Requests the assignment of a topic. Calls `pull` with the queues to pull, and `pop` with the queues to pop.

    If a topic changes to pull mode, its POP retry topic, which may have messages, is added to `subscriptions`.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        allocate: AllocateStrategy,
        subscriptions: MutableMapping[str, SubscriptionData],
        pull: Assign,
        pop: Assign,
    ) -> None:
        self._client = client
        self._group = group
        self._strategy_name = STRATEGY_NAMES[allocate]
        self._subscriptions = subscriptions
        self._api = PopApi(client, group)
        self._pull = pull
        self._pop = pop

    async def rebalance(self, topic: str) -> None:
        queues = await self._client.routes.read_queues(topic)
        await self._client.greet_new_brokers()
        address = any_broker(self._client, topic, queues)
        assignments = await self._api.assignment(address, topic, self._strategy_name)
        if assignments is None:
            return
        popped = {assigned.message_queue.queue for assigned in assignments if assigned.mode == MODE_POP}
        pulled = {assigned.message_queue.queue for assigned in assignments} - popped
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            retry = pop_retry_topic(topic, self._group)
            if pulled and not popped:
                self._subscriptions.setdefault(retry, SubscriptionData.parse(retry))
            elif popped and not pulled and self._subscriptions.pop(retry, None) is not None:
                await self._pull(retry, set())
        await self._pull(topic, pulled)
        await self._pop(topic, popped)

    async def give_up(self, topic: str) -> None:
        await self._pull(topic, set())
        await self._pop(topic, set())
