"""Why a store takes no messages."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.errors import StoreError


class Refusal(NamedTuple):
    """Kept in place of an exception: one that is raised again and again keeps the tracebacks of all who got it.

    With those it would keep the bodies of their messages.
    """

    text: str
    error: type[StoreError] = StoreError

    def exception(self) -> StoreError:
        """A new one for each who is refused."""
        return self.error(self.text)
