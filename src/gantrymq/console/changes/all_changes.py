"""All changes."""

from __future__ import annotations

from gantrymq.console.changes import brokers, dead_letters, groups, messages, topics, users
from gantrymq.console.changes.change import Change, LongChange

CHANGES: tuple[Change | LongChange, ...] = (
    *topics.CHANGES,
    *groups.CHANGES,
    *dead_letters.CHANGES,
    *messages.CHANGES,
    *users.CHANGES,
    *brokers.CHANGES,
)
