"""Requests of consumers: heartbeats, offsets, queue locks and queue assignments."""

from __future__ import annotations

from gantrymq.broker.consumers.heartbeats import Heartbeats
from gantrymq.broker.consumers.locks import LockRequests
from gantrymq.broker.consumers.query_assignment import Assignments
from gantrymq.broker.consumers.queue_offsets import QueueOffsets
from gantrymq.broker.consumers.slow_consumers import SlowConsumers

__all__ = ["Assignments", "Heartbeats", "LockRequests", "QueueOffsets", "SlowConsumers"]
