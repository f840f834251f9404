"""The configuration of the NameServer, with Java's keys (NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from gantrymq.config import property_key
from gantrymq.remoting.tls import TlsConfig

#: Largest int in Java.
MAX_INT = 2**31 - 1

#: Keys that no request can change, whatever `configBlackList` contains (DefaultRequestProcessor.initConfigBlackList).
#: In Java, the TLS keys are not part of this configuration.
FIXED_KEYS = frozenset({"configBlackList", "configStorePath", "knownBrokersPath", "kvConfigPath", "rocketmqHome"}) | {
    property_key(field) for field in fields(TlsConfig)
}

#: Keys of Java's NameServer that have no effect here, and their defaults. Responses show them, and changes are stored.
UNUSED_KEYS = {
    "clientRequestThreadPoolNums": "8",
    "clientRequestThreadPoolQueueCapacity": "50000",
    "clusterTest": "false",
    "defaultThreadPoolNums": "16",
    "defaultThreadPoolQueueCapacity": "10000",
    "enableControllerInNamesrv": "false",
    "enableShutdownGracefully": "false",
    "productEnvName": "center",
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverNettyWorkerGroupEnable": "true",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketBacklog": "1024",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "shutdownWaitTimeSeconds": "30",
    "unRegisterBrokerQueueCapacity": "3000",
    "useEpollNativeSelector": "false",
    "writeBufferHighWaterMark": "0",
    "writeBufferLowWaterMark": "0",
}


@dataclass
class NamesrvConfig(TlsConfig):
    """A NameServer's configuration. Defaults and units are Java's. Times are in ms, or in s if the name says so."""

    #: Port to listen on. 0 selects a free port.
    listen_port: int = field(default=9876, metadata={"minimum": 0, "maximum": 65535})
    bind_address: str = "0.0.0.0"
    #: Port of the Prometheus endpoint, http://bindAddress:metricsPort/metrics. 0 disables it.
    metrics_port: int = field(default=0, metadata={"minimum": 0, "maximum": 65535})
    #: A connection is closed if it is silent for this time, in seconds.
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"minimum": 1, "maximum": MAX_INT})
    #: File of the KV configuration (JSON), which is written after each change.
    kv_config_path: Path = field(default_factory=lambda: Path.home() / "namesrv" / "kvConfig.json")
    #: File with the brokers and their topics (JSON, see `known_brokers`). Default: next to `kv_config_path`.
    known_brokers_path: Path = field(default=Path())
    #: File to which UPDATE_NAMESRV_CONFIG saves the configuration.
    config_store_path: Path = field(default_factory=lambda: Path.home() / "namesrv" / "namesrv.properties")
    #: Keys that requests cannot change, in addition to the fixed ones.
    config_black_list: list[str] = field(default_factory=lambda: ["configBlackList", "configStorePath", "kvConfigPath"])
    #: Interval of the check for silent brokers, in milliseconds.
    scan_not_active_broker_interval: int = field(default=5000, metadata={"minimum": 10, "maximum": MAX_INT})
    #: Add the topic's value in the KV namespace ORDER_TOPIC_CONFIG to its route.
    order_message_enable: bool = False
    #: Add the KV namespace ORDER_TOPIC_CONFIG to the response to a registration.
    return_order_topic_config_to_broker: bool = True
    #: If a master is lost, show the slave with the lowest id as acting master.
    support_acting_master: bool = False
    #: Notify the brokers of a name when their lowest id changes.
    notify_min_broker_id_changed: bool = False
    #: Allow requests for the list of all topics (GET_ALL_TOPIC_LIST_FROM_NAMESERVER).
    enable_all_topic_list: bool = True
    #: Allow requests for the topics of a cluster or of a kind.
    enable_topic_list: bool = True
    #: Reject route requests during the first `waitSecondsForService` after the start.
    need_wait_for_service: bool = False
    #: Duration for `need_wait_for_service`, in seconds.
    wait_seconds_for_service: int = field(default=45, metadata={"minimum": 0, "maximum": MAX_INT})
    #: If a registration no longer contains a topic, remove the topic from the broker.
    delete_topic_with_broker_registration: bool = False

    def __post_init__(self) -> None:
        if self.known_brokers_path == Path():
            self.known_brokers_path = self.kv_config_path.parent / f"{self.kv_config_path.stem}.brokers.json"
