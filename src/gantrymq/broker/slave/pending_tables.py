"""Tables of a master that a slave can't apply yet, because its log is too short.

Consumer offsets and delivery progress refer to messages in the master's log. If a slave applied them before it has
these messages and then became master, it would skip messages whose delivery only the former master's log records.
Java's slave applies each table as soon as it arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

#: Applies a table to this broker.
Take = Callable[[], Awaitable[None] | None]


class PendingTables:
    """Keeps at most one pending table per name.

    A newer table doesn't replace a pending one. Otherwise a slave that always lags a little would never apply a table.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Take]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def hold(self, name: str, log_end: int, take: Take) -> None:
        """Adds a table to apply when the slave's log reaches `log_end`, unless one with this name is pending.

        `log_end` is an end of the master's log that the master reported after it sent the table.
        """
        self._held.setdefault(name, (log_end, take))

    def reached(self, log_end: int) -> Iterator[tuple[str, Take]]:
        """Yields the tables that a log with this end has reached. Each one stays pending until `taken`.

        The caller may add or remove tables between two items. Tables that were removed or replaced are skipped.
        """
        for name, held in list(self._held.items()):
            if held[0] <= log_end and self._held.get(name) is held:
                yield name, held[1]

    def taken(self, name: str, take: Take) -> None:
        """Removes a table that was applied, unless another one has replaced it."""
        if name in self._held and self._held[name][1] is take:
            del self._held[name]

    def clear(self) -> None:
        """Discards all pending tables. Called when the role or the master changes."""
        self._held.clear()
