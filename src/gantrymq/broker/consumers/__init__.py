"""Requests of consumers: heartbeats, offsets, queue locks and queue assignments, and the lag of consumer groups."""

from __future__ import annotations

from gantrymq.broker.consumers.heartbeats import Heartbeats
from gantrymq.broker.consumers.lag import Backlog, ConsumerLag
from gantrymq.broker.consumers.locks import LockRequests
from gantrymq.broker.consumers.query_assignment import Assignments
from gantrymq.broker.consumers.queue_offsets import QueueOffsets
from gantrymq.broker.consumers.slow_consumers import SlowConsumers

__all__ = ["Assignments", "Backlog", "ConsumerLag", "Heartbeats", "LockRequests", "QueueOffsets", "SlowConsumers"]
