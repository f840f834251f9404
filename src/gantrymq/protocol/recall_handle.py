"""Recall handles, which identify a delayed message to cancel (common/producer/RecallMessageHandle).

A handle is "v1 TOPIC BROKER TIMESTAMP KEY" in Base64 (URL alphabet).
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from gantrymq.errors import IllegalMessage

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Identifies a delayed message by its delivery time, in ms since the epoch, and its unique key."""

    topic: str
    broker_name: str
    timestamp_ms: int
    unique_key: str

    def encode(self) -> str:
        return urlsafe_b64encode(" ".join((_VERSION, *map(str, self))).encode()).decode()


def decode_recall_handle(handle: str) -> RecallHandle:
    """Parses a handle. Raises IllegalMessage if it is not a valid handle of version 1."""
    try:
        version, topic, broker_name, timestamp, unique_key = urlsafe_b64decode(handle).decode().split(" ")[:5]
        timestamp_ms = int(timestamp)
    except (binascii.Error, ValueError) as e:
        raise IllegalMessage("recall handle is invalid") from e
    if version != _VERSION:
        raise IllegalMessage("recall handle is invalid")
    return RecallHandle(topic, broker_name, timestamp_ms, unique_key)
