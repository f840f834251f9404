"""Slaves that take nothing from their master, as if they hung."""

from __future__ import annotations

from gantrymq.broker.broker import Broker
from gantrymq.replication.slave_connection import SlaveConnection


def hold_slave(broker: Broker) -> None:
    """It is there, and takes nothing more from the master that there is."""
    connection = _connection(broker)
    connection.pause()
    # Nor when what it has read by now is in its store.
    connection.resume = lambda: None  # type: ignore[method-assign]


def release_slave(broker: Broker) -> None:
    """It goes on."""
    connection = _connection(broker)
    del connection.resume
    connection.resume()


def _connection(broker: Broker) -> SlaveConnection:
    slave = broker.replicating._slave
    assert slave is not None
    assert slave._connection is not None
    return slave._connection
