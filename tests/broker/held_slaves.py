"""Slaves that take nothing from their master, as if they hung."""

from __future__ import annotations

from gantrymq.broker.broker import Broker


def hold_slave(broker: Broker) -> None:
    """It is there, and takes nothing more from the master that there is."""
    slave = broker.replicating._slave
    assert slave is not None
    connection = slave._connection
    assert connection is not None
    connection.pause()
    # Nor when what it has read by now is in its store.
    connection.resume = lambda: None  # type: ignore[method-assign]


def release_slave(broker: Broker) -> None:
    """It goes on."""
    slave = broker.replicating._slave
    assert slave is not None
    connection = slave._connection
    assert connection is not None
    del connection.resume
    connection.resume()
