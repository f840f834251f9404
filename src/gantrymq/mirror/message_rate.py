"""MessageRate: spreads messages over time, for all queues of a mirror together."""

from __future__ import annotations

import asyncio

from gantrymq.system.clock import monotonic


class MessageRate:
    """Permits `rate` messages per second. None permits any number."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        #: Time at which the next messages are permitted (monotonic, s).
        self._next = 0.0

    def largest(self, messages: int) -> int:
        """Returns the largest number of messages to take at once: those of one second, at most `messages`."""
        return messages if self._rate is None else max(1, min(messages, self._rate))

    async def take(self, messages: int) -> None:
        """Waits until `messages` more messages are permitted."""
        if self._rate is None:
            return
        now = monotonic()
        start = max(now, self._next)
        self._next = start + messages / self._rate
        await asyncio.sleep(start - now)
