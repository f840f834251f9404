"""The reason why a store rejects messages."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.errors import StoreError


class Refusal(NamedTuple):
    """An error that can be raised many times. `exception` creates a new exception each time.

    An exception that is raised repeatedly would keep all tracebacks, and with them the message bodies.
    """

    text: str
    error: type[StoreError] = StoreError

    def exception(self) -> StoreError:
        """Returns a new exception for one caller."""
        return self.error(self.text)
