"""Part: what the broker is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gantrymq.remoting.connection import Connection, RequestHandler


class Part:
    """A part of the broker. What a part has no use for stays as it is here.

    `Broker` calls `load` of each part in the order of its list, then `start`, each followed by what the broker is,
    `become_master` or `become_slave`, and `stop` in the opposite order, after a `start` that raised, too; then `save`.
    """

    def handlers(self) -> Mapping[int, RequestHandler]:
        """What it answers, by request code."""
        return {}

    def load(self) -> None:
        """Reads its files. Raises StoreError or ConfigError."""

    async def start(self) -> None:
        """Begins its work in the background."""

    async def become_master(self) -> None:
        """The broker is a master now: begins with what only a master does."""

    async def become_slave(self) -> None:
        """The broker is a slave now: ends what only a master does. Its log and tables are copies from now on."""

    async def stand_in(self) -> None:
        """A slave stands in for its master: does what only a master does, and has other brokers store it.

        `become_slave` ends it.
        """

    def save(self) -> None:
        """Writes what isn't in its files yet, at the end; until then see `Saving`. Raises StoreError."""

    def config_changed(self) -> None:
        """The configuration, which all parts have in common, was changed while the broker runs."""

    async def stop(self) -> None:
        """Ends its work, and answers who waits."""

    def connection_closed(self, connection: Connection) -> None:
        """A peer is gone, and what waited for it with it."""


def handler_table(parts: Iterable[Part]) -> dict[int, RequestHandler]:
    """All that the parts answer. Raises ValueError when two answer the same code."""
    table: dict[int, RequestHandler] = {}
    for part in parts:
        handlers = part.handlers()
        if twice := table.keys() & handlers.keys():
            raise ValueError(f"{type(part).__name__}: another part answers {sorted(twice)} already")
        table.update(handlers)
    return table
