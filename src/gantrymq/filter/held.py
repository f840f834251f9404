"""HeldFilters: what subscriptions become, as long as anybody holds it, so that equal ones are one and all have a bound.

A hundred thousand requests may wait, each with a subscription of 16 KiB, which takes 200 KB. Those of a consumer are
equal, of which one is made; all that differ have a number of characters together. Half of it is for short ones, so that
whoever asks for little finds room beside others who don't.

The alternative that lost: a share for each connection. It counts what a consumer of a hundred queues says a hundred
times, though it takes no more memory than once.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary, finalize

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode

#: Characters of all subscriptions of a kind, and of one that counts as short.
MAX_CHARACTERS = 2 * 1024 * 1024
SHORT = 256

T = TypeVar("T")


class HeldFilters(Generic[T]):
    """The filters of one kind by their texts."""

    def __init__(self) -> None:
        self.characters = 0
        self._filters: WeakValueDictionary[str, T] = WeakValueDictionary()

    def get(self, text: str) -> T | None:
        return self._filters.get(text)

    def take(self, text: str) -> None:
        """Room for a new one. Raises RequestRefused when there is none."""
        most = MAX_CHARACTERS if len(text) <= SHORT else MAX_CHARACTERS // 2
        if self.characters and self.characters + len(text) > most:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: requests wait with subscriptions of "
                f"{self.characters} characters",
            )
        self.characters += len(text)

    def give_back(self, text: str) -> None:
        """It has come to nothing."""
        self._gone(len(text))

    def add(self, text: str, compiled: T) -> T:
        """`compiled` is what it has come to. It takes the room until nobody holds it."""
        self._filters[text] = compiled
        finalize(compiled, self._gone, len(text)).atexit = False
        return compiled

    def _gone(self, characters: int) -> None:
        self.characters -= characters
