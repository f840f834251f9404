"""The list of all changes."""

from __future__ import annotations

from gantrymq.console.changes import brokers, dead_letter_messages, groups, messages, topics, users
from gantrymq.console.changes.change import Change, LongChange

CHANGES: tuple[Change | LongChange, ...] = (
    *topics.CHANGES,
    *groups.CHANGES,
    *dead_letter_messages.CHANGES,
    *messages.CHANGES,
    *users.CHANGES,
    *brokers.CHANGES,
)
