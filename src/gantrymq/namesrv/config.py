"""NamesrvConfig: the NameServer's configuration, under Java's keys (NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from gantrymq.config import property_key
from gantrymq.remoting.tls import TlsConfig

#: Java's largest int.
MAX_INT = 2**31 - 1

#: May never be changed over the network, whatever configBlackList says (DefaultRequestProcessor.initConfigBlackList);
#: in Java those of TLS are no part of the configuration.
FIXED_KEYS = frozenset({"configBlackList", "configStorePath", "knownBrokersPath", "kvConfigPath", "rocketmqHome"}) | {
    property_key(field) for field in fields(TlsConfig)
}


@dataclass
class NamesrvConfig(TlsConfig):
    """Defaults are Java's. Times are in the unit that Java's key has: ms, or s where the name says so."""

    #: 0 takes any free port.
    listen_port: int = field(default=9876, metadata={"minimum": 0, "maximum": 65535})
    bind_address: str = "0.0.0.0"
    #: Where Prometheus asks, http://bindAddress:metricsPort/metrics; 0: nowhere.
    metrics_port: int = field(default=0, metadata={"minimum": 0, "maximum": 65535})
    #: A connection that sent nothing for so long is closed.
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"minimum": 1, "maximum": MAX_INT})
    #: KV configuration as JSON, written at each change.
    kv_config_path: Path = field(default_factory=lambda: Path.home() / "namesrv" / "kvConfig.json")
    #: File of the brokers and their topics as JSON (`known_brokers`). Default: beside `kv_config_path`.
    known_brokers_path: Path = field(default=Path())
    #: Where UPDATE_NAMESRV_CONFIG writes the configuration.
    config_store_path: Path = field(default_factory=lambda: Path.home() / "namesrv" / "namesrv.properties")
    #: Keys that requests may not change, besides those that none ever may.
    config_black_list: list[str] = field(default_factory=lambda: ["configBlackList", "configStorePath", "kvConfigPath"])
    #: Milliseconds between looks for brokers that fell silent.
    scan_not_active_broker_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Whether routes carry the topic's value of the KV namespace ORDER_TOPIC_CONFIG.
    order_message_enable: bool = False
    #: Whether the answer to a registration carries that namespace.
    return_order_topic_config_to_broker: bool = True
    #: Whether the slave with the lowest id stands in for a master that is gone.
    support_acting_master: bool = False
    #: Whether brokers of a name are told when their lowest id changes.
    notify_min_broker_id_changed: bool = False
    #: Whether all topics are listed for those who ask (GET_ALL_TOPIC_LIST_FROM_NAMESERVER).
    enable_all_topic_list: bool = True
    #: Whether topics are listed by cluster and by kind, too.
    enable_topic_list: bool = True
    #: Whether no route is answered in the first `waitSecondsForService`.
    need_wait_for_service: bool = False
    #: Seconds.
    wait_seconds_for_service: int = field(default=45, metadata={"minimum": 0, "maximum": MAX_INT})
    #: Whether a topic that a registration no longer lists is taken from the broker.
    delete_topic_with_broker_registration: bool = False

    def __post_init__(self) -> None:
        if self.known_brokers_path == Path():
            self.known_brokers_path = self.kv_config_path.parent / f"{self.kv_config_path.stem}.brokers.json"
