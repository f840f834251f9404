"""Appends messages to the store, and queues the requests and responses that wait for the store."""

from __future__ import annotations

from gantrymq.broker.append.appender import PREALLOCATION_RETRY_S, Appender, EscapeRoute, born_host, is_passing
from gantrymq.broker.append.late_responses import answer_within_ms
from gantrymq.broker.append.new_topics import NewTopics
from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.append.preallocation_waits import WAIT_S, PreallocationWaits
from gantrymq.broker.append.received_messages import (
    DELAY,
    NORMAL,
    SHARDING_KEY,
    SIZE_BOUNDS,
    TRANSACTION,
    ReceivedMessages,
    message_type,
)
from gantrymq.broker.append.request_waits import RequestWaits

__all__ = [
    "DELAY",
    "NORMAL",
    "PREALLOCATION_RETRY_S",
    "SHARDING_KEY",
    "SIZE_BOUNDS",
    "TRANSACTION",
    "WAIT_S",
    "Appender",
    "EscapeRoute",
    "NewTopics",
    "PendingResponses",
    "PreallocationWaits",
    "ReceivedMessages",
    "RequestWaits",
    "answer_within_ms",
    "born_host",
    "is_passing",
    "message_type",
]
