"""The configuration of a controller, with Java's keys (ControllerConfig, NettyServerConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from gantrymq import metrics_export
from gantrymq.config import MAX_INT, property_key
from gantrymq.errors import ConfigError
from gantrymq.remoting import tls
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.tls import TlsConfig
from gantrymq.system import network

#: Keys that are not shown, because they contain secrets.
SECRET_KEYS = (
    frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
    | tls.SECRET_KEYS
    | metrics_export.SECRET_KEYS
)
#: Keys that no request can change, whatever `configBlackList` contains (ControllerRequestProcessor).
FIXED_KEYS = (
    frozenset({"configBlackList", "configStorePath", "rocketmqHome", "authenticationEnabled", "boundSignatureRequired"})
    | SECRET_KEYS
    | {property_key(field) for field in fields(TlsConfig)}
)


@dataclass
class ControllerConfig(metrics_export.MetricsConfig, TlsConfig):
    """A controller's configuration. Defaults and units are Java's: times are in ms, or in s if the key's name says so.

    Java's Raft keys identify this controller: its group, its id and, in the list of peers, its port and its address for
    brokers.
    """

    #: Port to listen on. 0 selects a free port. If `controllerDLegerPeers` is set, its port takes precedence.
    listen_port: int = field(default=9878, metadata={"minimum": 0, "maximum": 65535})
    bind_address: str = "0.0.0.0"
    #: Port of the Prometheus endpoint, http://bindAddress:metricsPort/metrics. 0 disables it.
    metrics_port: int = field(default=0, metadata={"minimum": 0, "maximum": 65535})
    #: A connection is closed if it is silent for this time, in seconds.
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"minimum": 1, "maximum": MAX_INT})
    #: Common name of the group of controllers.
    group: str = field(default="gantry", metadata={"key": "controllerDLegerGroup"})
    #: Id of this controller within the group.
    self_id: str = field(default="n0", metadata={"key": "controllerDLegerSelfId"})
    #: All controllers of the group, each as ID-HOST:PORT.
    peers: list[str] = field(default_factory=list, metadata={"key": "controllerDLegerPeers"})
    #: URLs of etcd members, which store the state of several controllers. If empty, a local file stores the state.
    etcd_endpoints: list[str] = field(default_factory=list)
    #: Directory of the local file, which is a SQLite database.
    controller_store_path: Path = field(default_factory=lambda: Path.home() / "controller")
    #: File to which UPDATE_CONTROLLER_CONFIG saves the configuration.
    config_store_path: Path = field(default_factory=lambda: Path.home() / "controller" / "controller.properties")
    #: Keys that requests cannot change, in addition to the fixed ones.
    config_black_list: list[str] = field(default_factory=lambda: ["configBlackList", "configStorePath"])
    #: Longest interval between checks for silent brokers, in milliseconds.
    scan_not_active_broker_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Interval between checks for failed masters, in milliseconds.
    scan_inactive_master_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Requests must be signed by one of the two users below, which have the same keys as in broker.conf (see `access`).
    authentication_enabled: bool = False
    init_authentication_user: str = field(default="", repr=False)
    inner_client_authentication_credentials: str = field(default="", repr=False)
    #: Signatures must cover code, opaque number and time. Java's brokers cannot create such signatures.
    bound_signature_required: bool = False
    #: If no in-sync broker is alive, elect one that may lack acknowledged messages.
    enable_elect_unclean_master: bool = False
    #: Notify brokers of a new master. They also poll, every `syncBrokerMetadataPeriod`.
    notify_broker_role_changed: bool = True


class Place(NamedTuple):
    """The address of a controller. `address` is for brokers; None derives it from the port."""

    port: int
    address: str | None


def place_of(config: ControllerConfig) -> Place:
    """Returns the address of this controller. Raises ConfigError if the list of peers is invalid or lacks it."""
    peers = dict(peer.split("-", 1) for peer in config.peers if "-" in peer)
    if not config.peers:
        return Place(config.listen_port, None)
    address = peers.get(config.self_id)
    if address is None:
        raise ConfigError(
            f"controllerDLegerPeers={';'.join(config.peers)} has no {config.self_id}-HOST:PORT "
            f"(controllerDLegerSelfId={config.self_id})"
        )
    try:
        _, port = parse_address(address)
    except ValueError as e:
        raise ConfigError(f"controllerDLegerPeers={';'.join(config.peers)}: {e}") from e
    if len(peers) > 1 and not config.etcd_endpoints:
        raise ConfigError(
            f"controllerDLegerPeers={';'.join(config.peers)}: several controllers need etcdEndpoints; the file of one "
            f"is for {config.self_id}-{address} alone"
        )
    return Place(port, address)


def address_for_brokers(config: ControllerConfig, port: int) -> str:
    """Returns the HOST:PORT at which other machines reach a controller with this port."""
    host = config.bind_address
    return format_address(network.local_ip() if host in ("0.0.0.0", "::") else host, port)
