"""UnknownIds: ids of schemas that a registry hasn't got, and when it may be asked for another.

Anybody's bodies name any ids. An answer is good for a minute, as a schema may be registered later. Each other id costs
a request, so that they are rationed: a hundred misses are free, then there is a pause after each one. The pause counts
from the answer, so that a registry that is slow to say no holds up no task for long. This bounds what is remembered,
too: some 700 ids.
"""

from __future__ import annotations

FOR_S = 60.0
AT_ONCE = 100
PAUSE_S = 0.1


class UnknownIds:
    """Of one decoder. It is told the time, in seconds."""

    def __init__(self) -> None:
        #: Until when, those longest ago first.
        self._until: dict[int, float] = {}
        self._at_once = AT_ONCE
        self._missed_at = 0.0

    def __len__(self) -> int:
        return len(self._until)

    def has(self, schema_id: int, now: float) -> bool:
        """Whether the registry said so a short while ago."""
        return self._until.get(schema_id, now) > now

    def may_ask(self, now: float) -> bool:
        """Whether it is time for another one, which may be unknown, too."""
        return self._at_once > 0 or now >= self._missed_at + PAUSE_S

    def add(self, schema_id: int, now: float) -> None:
        """What the registry said just now that it hasn't got."""
        while self._until:
            first = next(iter(self._until))
            if self._until[first] > now:
                break
            del self._until[first]
        self._until[schema_id] = now + FOR_S
        self._at_once = max(0, self._at_once - 1)
        self._missed_at = now
