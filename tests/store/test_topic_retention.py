"""Retention of single topics: the minimum offset of a queue advances, and its records stay in the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_support import STORE_HOST, UNITS_PER_FILE, crash, flushed, open_store, put, read_all, release, small_config
from wait_until import wait_until

from gantrymq.errors import StoreError
from gantrymq.store import message_writer
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.store.topic_retention import RetentionLimits
from gantrymq.store.verify import verify

START_MS = 1_800_000_000_000


class Limits:
    """The limits of the topic `orders`, which a test can change. Other topics have none."""

    def __init__(self, max_age_ms: int | None = None, max_bytes: int | None = None) -> None:
        self.value: RetentionLimits | None = RetentionLimits(max_age_ms, max_bytes)

    def __call__(self, topic: str) -> RetentionLimits | None:
        return self.value if topic == "orders" else None


def limited_store(root: Path, limits: Limits, **options: Any) -> MessageStore:
    store = MessageStore(small_config(root, **options), STORE_HOST, topic_limits=limits)
    store.open()
    return store
