"""Feature: one function of a broker, with its request handlers and its background work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gantrymq.remoting.connection import RequestHandler


class Feature:
    """A feature of a broker. A subclass overrides the methods that it needs.

    `Broker` calls `load` of each feature in order. Then it calls `start` of each, followed by `become_master` or
    `become_slave`. It calls `stop` in the opposite order, even if a `start` has raised, and then `save`.
    """

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Returns the request handlers by request code."""
        return {}

    def load(self) -> None:
        """Reads the feature's files. Raises StoreError or ConfigError."""

    async def start(self) -> None:
        """Starts the background work."""

    async def become_master(self) -> None:
        """Starts the work of a master."""

    async def become_slave(self) -> None:
        """Stops the work of a master. From now on, the log and the tables are copies of the master's."""

    async def stand_in(self) -> None:
        """Starts the work of an acting master, until `become_slave`. Other brokers store its messages."""

    def save(self) -> None:
        """Writes unsaved changes when the broker stops. `TablePersistence` writes earlier ones. Raises StoreError."""

    async def stop(self) -> None:
        """Stops the background work and answers the pending requests."""


def handler_table(features: Iterable[Feature]) -> dict[int, RequestHandler]:
    """Returns all request handlers. Raises ValueError if two features handle the same code."""
    table: dict[int, RequestHandler] = {}
    for feature in features:
        handlers = feature.handlers()
        if twice := table.keys() & handlers.keys():
            raise ValueError(f"{type(feature).__name__}: another feature handles {sorted(twice)} already")
        table.update(handlers)
    return table
