"""FilterCache: compiled filters of pending requests. Equal filters are shared, and their total size is limited.

A hundred thousand requests can be pending, each with a subscription of 16 KiB, which compiles to 200 KB. Requests of
one consumer have equal subscriptions, so one filter is compiled for all. Different filters share a limit of characters.
Half of this limit is reserved for short filters, so that long filters cannot block them.

Decision record: docs/decisions/filters.md.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary, finalize

from gantrymq.errors import RequestRefused
from gantrymq.limits import FILTER_CHARACTERS
from gantrymq.protocol.codes import ResponseCode

#: Maximum length of a short filter, in characters.
SHORT = 256

T = TypeVar("T")


class FilterCache(Generic[T]):
    """The filters of one kind, by their texts. A filter is dropped when no request refers to it."""

    def __init__(self) -> None:
        self.characters = 0
        self._filters: WeakValueDictionary[str, T] = WeakValueDictionary()

    def get(self, text: str) -> T | None:
        return self._filters.get(text)

    def take(self, text: str) -> None:
        """Reserves characters for a new filter. Raises RequestRefused if the limit is exceeded."""
        most = FILTER_CHARACTERS if len(text) <= SHORT else FILTER_CHARACTERS // 2
        if self.characters and self.characters + len(text) > most:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: requests wait with subscriptions of "
                f"{self.characters} characters",
            )
        self.characters += len(text)

    def give_back(self, text: str) -> None:
        """Releases the characters of a filter that could not be compiled."""
        self._gone(len(text))

    def add(self, text: str, compiled: T) -> T:
        """Stores a compiled filter. Its characters are released when it is garbage-collected."""
        self._filters[text] = compiled
        finalize(compiled, self._gone, len(text)).atexit = False
        return compiled

    def _gone(self, characters: int) -> None:
        self.characters -= characters
