"""Pull requests and long polling."""

from __future__ import annotations

from gantrymq.broker.pull.long_polling import LongPolling
from gantrymq.broker.pull.processor import DEFAULT_PULL_BYTES, MAX_SUSPEND_MS, PullProcessor
from gantrymq.broker.pull.read_checks import (
    check_broker,
    check_queue_id,
    existing_group,
    existing_topic,
    readable_topic,
)

__all__ = [
    "DEFAULT_PULL_BYTES",
    "MAX_SUSPEND_MS",
    "LongPolling",
    "PullProcessor",
    "check_broker",
    "check_queue_id",
    "existing_group",
    "existing_topic",
    "readable_topic",
]
