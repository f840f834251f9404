"""The broker's configuration, under Java's key names (`BrokerConfig`, `NettyServerConfig`)."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.protocol.topic_config import PERM_READ, PERM_WRITE
from gantrymq.remoting.tls import TlsConfig
from gantrymq.store.config import StoreConfig

#: BrokerStartup sets this one; BrokerConfig's own default isn't used.
DEFAULT_PORT = 10911


def _default_store() -> StoreConfig:
    return StoreConfig(store_path_root_dir=Path.home() / "store")


@dataclass
class BrokerConfig(TlsConfig):
    """One broker. `namesrv_addr` are host:port of every NameServer; `listen_port` 0 takes any free port.

    `broker_ip1` is the address that clients are told; it must be one that they reach. `broker_config_path` is the file
    that the configuration came from: what is changed from outside is written to it.
    """

    broker_name: str = field(default_factory=socket.gethostname)
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    broker_ip1: str = field(default="127.0.0.1", metadata={"key": "brokerIP1"})
    bind_address: str = "0.0.0.0"
    listen_port: int = DEFAULT_PORT
    ha_listen_port: int = 0
    namesrv_addr: list[str] = field(default_factory=list)
    broker_permission: int = PERM_READ | PERM_WRITE
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    long_polling_enable: bool = True
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    flush_consumer_offset_interval: int = 5_000
    channel_expired_timeout: int = 120_000
    broker_config_path: Path | None = None
    #: Where Prometheus asks, http://bindAddress:metricsPort/metrics; 0: nowhere.
    metrics_port: int = field(default=0, metadata={"minimum": 0, "maximum": 65535})
    store: StoreConfig = field(default_factory=_default_store, metadata={"key": None})

    def __post_init__(self) -> None:
        if self.broker_id != 0:
            raise ConfigError(f"brokerId={self.broker_id}: only masters (brokerId=0) are supported so far")
        if not 0 <= self.listen_port < 65536:
            raise ConfigError(f"listenPort={self.listen_port}: a port is 0 to 65535")
        if self.default_topic_queue_nums < 1:
            raise ConfigError(f"defaultTopicQueueNums={self.default_topic_queue_nums}: at least 1")
        # BrokerController.start: registration at most every 10 s, at least every 60 s.
        self.register_name_server_period = max(10_000, min(self.register_name_server_period, 60_000))
