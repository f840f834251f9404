"""ControllerConfig: a controller's configuration, under Java's keys (ControllerConfig, NettyServerConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from gantrymq.config import MAX_INT, property_key
from gantrymq.errors import ConfigError
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.tls import TlsConfig
from gantrymq.system import network

#: Not to be shown: they hold secrets.
SECRET_KEYS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
#: May never be changed over the network, whatever configBlackList says (ControllerRequestProcessor).
FIXED_KEYS = (
    frozenset({"configBlackList", "configStorePath", "rocketmqHome", "authenticationEnabled", "boundSignatureRequired"})
    | SECRET_KEYS
    | {property_key(field) for field in fields(TlsConfig)}
)


@dataclass
class ControllerConfig(TlsConfig):
    """Defaults are Java's. Times are in the unit that Java's key has: ms, or s where the name says so.

    Java's keys of Raft say here who this controller is: its group, its id, and by its id's entry in the list of peers
    its port and its address for brokers.
    """

    #: 0 takes any free port. That of controllerDLegerPeers counts, if there is one.
    listen_port: int = field(default=9878, metadata={"minimum": 0, "maximum": 65535})
    bind_address: str = "0.0.0.0"
    #: Where Prometheus asks, http://bindAddress:metricsPort/metrics; 0: nowhere.
    metrics_port: int = field(default=0, metadata={"minimum": 0, "maximum": 65535})
    #: A connection that sent nothing for so long is closed.
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"minimum": 1, "maximum": MAX_INT})
    #: What the controllers are called together.
    group: str = field(default="gantry", metadata={"key": "controllerDLegerGroup"})
    #: What this one is called among them.
    self_id: str = field(default="n0", metadata={"key": "controllerDLegerSelfId"})
    #: All of them, each as ID-HOST:PORT.
    peers: list[str] = field(default_factory=list, metadata={"key": "controllerDLegerPeers"})
    #: Where the state of several controllers lies: URLs of etcd's members. Without, in a file of this one.
    etcd_endpoints: list[str] = field(default_factory=list)
    #: The directory of that file, a SQLite database.
    controller_store_path: Path = field(default_factory=lambda: Path.home() / "controller")
    #: Where UPDATE_CONTROLLER_CONFIG writes the configuration.
    config_store_path: Path = field(default_factory=lambda: Path.home() / "controller" / "controller.properties")
    #: Keys that requests may not change, besides those that none ever may.
    config_black_list: list[str] = field(default_factory=lambda: ["configBlackList", "configStorePath"])
    #: Milliseconds between looks for brokers that fell silent, at the most.
    scan_not_active_broker_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Milliseconds between looks for broker sets whose master is gone.
    scan_inactive_master_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Whether requests must be signed by one of the two users below, as they are in broker.conf (see `access`).
    authentication_enabled: bool = False
    init_authentication_user: str = field(default="", repr=False)
    inner_client_authentication_credentials: str = field(default="", repr=False)
    #: Requests need a signature that covers code, opaque and time; Java's brokers can't make one.
    bound_signature_required: bool = False
    #: Whether a broker that may lack acknowledged messages is elected rather than none.
    enable_elect_unclean_master: bool = False
    #: Whether brokers are told of a new master; they also ask, each `syncBrokerMetadataPeriod`.
    notify_broker_role_changed: bool = True


class Place(NamedTuple):
    """Where a controller listens; `address` is what brokers are told, None for what the port makes of it."""

    port: int
    address: str | None


def place_of(config: ControllerConfig) -> Place:
    """Raises ConfigError when the list of peers doesn't have this controller."""
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
    """host:port as other machines reach a controller that listens at `port`."""
    host = config.bind_address
    return format_address(network.local_ip() if host in ("0.0.0.0", "::") else host, port)
