"""Prometheus metrics of replication. Java's brokers have none, so the names are GantryMQ's own."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.replication import Replication
from gantrymq.metrics import Kind, Metric


def replication_metrics(
    config: BrokerConfig, replication: Replication, is_acting: bool, labels: dict[str, str]
) -> Iterator[Metric]:
    """Yields the replication metrics of a broker."""
    is_slave = config.broker_role is BrokerRole.SLAVE
    role = "master" if not is_slave else "acting master" if is_acting else "slave"
    yield Metric("gantry_broker_role", Kind.GAUGE, "1 for what the broker is.", [(labels | {"role": role}, 1)])
    yield Metric(
        "gantry_replication_role_changes_total",
        Kind.COUNTER,
        "How often the broker has become master or slave since its start.",
        [(labels, replication.role_changes)],
    )
    yield Metric(
        "gantry_replication_in_sync",
        Kind.GAUGE,
        "Brokers that count as having all, the master among them; at a slave 0.",
        [(labels, 0 if is_slave else replication.in_sync_count())],
    )
    status = replication.status()
    slaves = [(labels | {"slave": _name(slave.broker_id, slave.addr)}, slave) for slave in status.connections]
    yield Metric("gantry_replication_slaves", Kind.GAUGE, "Connected slaves.", [(labels, len(slaves))])
    for name, description, samples in (
        ("lag_bytes", "Bytes of the log that a slave lacks.", [(each, slave.diff) for each, slave in slaves]),
        (
            "lag_seconds",
            "Age of the oldest message that a slave lacks.",
            [(each, slave.behind_millis / 1000) for each, slave in slaves if slave.behind_millis >= 0],
        ),
        (
            "transferred_bytes_per_second",
            "Bytes of the log that went to a slave, or came to this one, in the last second.",
            [(each, slave.transferred_byte_in_second) for each, slave in slaves]
            if not is_slave
            else [(labels, status.client.transferred_byte_in_second)],
        ),
    ):
        yield Metric(f"gantry_replication_{name}", Kind.GAUGE, description, samples)
    last = replication.epochs.epochs.last if replication.epochs is not None else None
    yield Metric(
        "gantry_replication_epoch",
        Kind.GAUGE,
        "The last epoch of the broker's log.",
        [(labels, last.number)] if last is not None else [],
    )


def _name(broker_id: int, address: str) -> str:
    """Returns the broker id of a slave, or its host if the id is unknown.

    A Java slave does not send its id, and its port changes with each connection.
    """
    return str(broker_id) if broker_id >= 0 else address.rpartition(":")[0]
