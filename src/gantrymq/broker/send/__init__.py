"""Handles the requests with which clients store messages."""

from __future__ import annotations

from gantrymq.broker.send.batches import StoredIds
from gantrymq.broker.send.deduplication import Deduplication
from gantrymq.broker.send.idempotent_writes import IdempotentWrites
from gantrymq.broker.send.processor import SendProcessor
from gantrymq.broker.send.replies import Replies
from gantrymq.broker.send.retry_topics import RetryTopics

__all__ = ["Deduplication", "IdempotentWrites", "Replies", "RetryTopics", "SendProcessor", "StoredIds"]
