"""Slaves that are paused, as if they hung."""

from __future__ import annotations

from gantrymq.broker.broker import Broker
from gantrymq.replication.slave_connection import SlaveConnection


def pause_slave(broker: Broker) -> None:
    """Pauses the slave: it stays connected to its current master but stores nothing more."""
    connection = _connection(broker)
    connection.pause()
    # Otherwise the slave resumes as soon as the data that it has already read is stored.
    connection.resume = lambda: None  # type: ignore[method-assign]


def resume_slave(broker: Broker) -> None:
    """Resumes the slave."""
    connection = _connection(broker)
    del connection.resume
    connection.resume()


def _connection(broker: Broker) -> SlaveConnection:
    slave = broker.replication.slave
    assert slave is not None
    connection = slave._connection
    assert connection is not None
    return connection
