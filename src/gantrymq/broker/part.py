"""Part: what the broker is made of."""

from __future__ import annotations

from collections.abc import Mapping

from gantrymq.remoting.connection import Connection, RequestHandler


class Part:
    """A part of the broker. What a part has no use for stays as it is here.

    `Broker` calls `load`, then `start` of each part in the order of its list, and `save`, then `stop` in the opposite
    order; `stop` is called after a `start` that raised, too. `save` is called now and then in between.
    """

    def handlers(self) -> Mapping[int, RequestHandler]:
        """What it answers, by request code."""
        return {}

    def load(self) -> None:
        """Reads its files. Raises StoreError or ConfigError."""

    async def start(self) -> None:
        """Begins its work in the background."""

    def save(self) -> None:
        """Writes what has changed to its files. Raises StoreError; it is tried again later."""

    async def stop(self) -> None:
        """Ends its work, and answers who waits."""

    def connection_closed(self, connection: Connection) -> None:
        """A peer is gone, and what waited for it with it."""
