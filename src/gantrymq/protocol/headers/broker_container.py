"""Headers of requests to Java's broker containers (902, 903). `BrokerContainerProcessor`."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int64


class AddBrokerRequestHeader(Header):
    """ADD_BROKER (902): starts a broker with the configuration file at this path on the container's host."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(Header):
    """REMOVE_BROKER (903)."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64
