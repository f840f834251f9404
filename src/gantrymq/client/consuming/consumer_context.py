"""ConsumerContext: the shared objects of a started consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assignment import Assignment
from gantrymq.client.consuming.consume_statistics import ConsumeStatistics
from gantrymq.client.consuming.options import PullingOptions
from gantrymq.protocol.bodies.heartbeat import SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """Objects that the parts of a push or lite pull consumer share, from its start to its close.

    Attributes:
        client: Connections, routes and heartbeats.
        group: Consumer group, with its namespace.
        subscriptions: Subscriptions by topic, with its namespace. `subscribe` and `unsubscribe` change them.
        options: Options of the consumer.
        assignment: Notifies the application of its queues.
        statistics: Counters of each topic.
    """

    client: ClientInstance
    group: str
    subscriptions: Mapping[str, SubscriptionData]
    options: PullingOptions
    assignment: Assignment
    statistics: ConsumeStatistics = field(default_factory=ConsumeStatistics)
