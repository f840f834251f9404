"""Tables of a master whose log a slave hasn't got to that end yet.

How far the master has delivered delayed messages, or a group has consumed, follows from what is in its log. A slave
that took that before it has as much of the log, and became master then, would skip what was delivered only there.
Java's slave takes each table when it comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

#: Makes a table that of this broker.
Take = Callable[[], Awaitable[None] | None]


class HeldTables:
    """At most one by name: who is always a little behind would else never take one."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Take]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def hold(self, name: str, log_end: int, take: Take) -> None:
        """The master's log ended there, or before, when the table was as it is."""
        self._held.setdefault(name, (log_end, take))

    def reached(self, log_end: int) -> Iterator[tuple[str, Take]]:
        """The tables that a log with this end has reached. Each one stays held until `taken`.

        The table may change between two of them: what was removed or replaced meanwhile is left out.
        """
        for name, held in list(self._held.items()):
            if held[0] <= log_end and self._held.get(name) is held:
                yield name, held[1]

    def taken(self, name: str, take: Take) -> None:
        """Removes a table that is done, unless another one has replaced it."""
        if name in self._held and self._held[name][1] is take:
            del self._held[name]

    def clear(self) -> None:
        """The log won't come so far any more."""
        self._held.clear()
