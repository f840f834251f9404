"""The data of registered brokers, and the rules that depend on which brokers of a name are registered."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.namesrv.topic_table import TopicQueues
from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData
from gantrymq.protocol.bodies.topic_config import PERM_WRITE, DataVersion
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader


@dataclass(slots=True)
class LiveBroker:
    """Data of the last registration from one address. `connection` is the connection of this registration."""

    broker_name: str
    broker_id: int
    last_update_ms: int
    heartbeat_timeout_ms: int
    data_version: DataVersion
    connection: object
    ha_server_addr: str


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """A change of a name's lowest broker id. The brokers at the addresses in `notify` must be notified."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None
    notify: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of a registration. A slave gets the addresses of its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    min_broker_id_change: MinBrokerIdChange | None = None


def identity(key: tuple[str, str], live: LiveBroker) -> BrokerRequestHeader:
    cluster_name, address = key
    return BrokerRequestHeader(
        broker_name=live.broker_name, broker_addr=address, cluster_name=cluster_name, broker_id=live.broker_id
    )


def with_acting_master(broker: BrokerData, queues: TopicQueues) -> BrokerData:
    """Returns the broker with its lowest slave as acting master.

    Returns `broker` unchanged if it has a master, if the option is off, or if the topic is writable there.
    """
    own = queues.of(broker.broker_name)
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master or own is None:
        return broker
    if own.perm & PERM_WRITE:
        return broker
    lowest = min(addresses)
    acting = {MASTER_ID: addresses[lowest], **{i: a for i, a in addresses.items() if i != lowest}}
    return BrokerData(broker.cluster, broker.broker_name, acting, broker.zone_name, broker.enable_acting_master)


def min_broker_id_change(broker: BrokerData, offline: str | None, ha_server_addr: str | None) -> MinBrokerIdChange:
    addresses = broker.broker_addrs
    lowest = min(addresses)
    # A registration is notified to all brokers except the new one, and a loss to all remaining brokers.
    notify = tuple(a for i, a in addresses.items() if offline is not None or len(addresses) == 1 or i != lowest)
    return MinBrokerIdChange(broker.broker_name, lowest, addresses[lowest], offline, ha_server_addr, notify)
