"""The configuration of a broker, with Java's keys (`BrokerConfig`, `NettyServerConfig`)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gantrymq import metrics_export
from gantrymq.auth.address_pattern import parse_pattern
from gantrymq.auth.config import AuthConfig
from gantrymq.config import DAY_MS, MAX_INT, bounded, check_bounds
from gantrymq.errors import ConfigError
from gantrymq.limits import DEDUPLICATION_IDS, LITE_SUBSCRIPTIONS, WAITING_POPS
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.remoting.tls import TlsConfig
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig
from gantrymq.system import network

#: Each label has up to 63 letters, digits and hyphens (RFC 1123). Digits and dots alone are not a host name.
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_NUMBERS = re.compile(r"[0-9.]+")
#: Maximum number of queues of a topic on one broker, as a guard against typing errors. Java's largest topic,
#: BenchmarkTest, has 1,024 queues.
MAX_QUEUE_NUMS = 65_536
#: The default in Java's `BrokerStartup`, which replaces the default in Java's `BrokerConfig`.
DEFAULT_PORT = 10911


#: Keys with secret values, which must not be printed.
SECRET_KEYS = metrics_export.SECRET_KEYS


class BrokerRole(Enum):
    """The role of a broker among the brokers with the same name (`store/config/BrokerRole`)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    #: Responses to sends wait until `inSyncReplicas` brokers have the message.
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _default_store() -> StoreConfig:
    return StoreConfig(store_path_root_dir=Path.home() / "store")


@dataclass
class BrokerConfig(metrics_export.MetricsConfig, TlsConfig):
    """The configuration of one broker.

    Attributes:
        broker_ip1: The address at which clients and other brokers reach this broker.
        broker_ip2: The address at which slaves reach this broker for replication. None uses `broker_ip1`.
        listen_port: 0 selects any free port.
        namesrv_addr: host:port of every NameServer.
        broker_config_path: The file of this configuration. Changes by administrators are written to it.
    """

    broker_name: str = field(default_factory=network.host_name)
    broker_cluster_name: str = "DefaultCluster"
    #: 0 for a master, a larger number for a slave. In controller mode, the controller assigns the id.
    broker_id: int = bounded(0, -1, MAX_INT)
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    broker_ip1: str = field(default="127.0.0.1", metadata={"key": "brokerIP1"})
    broker_ip2: str | None = field(default=None, metadata={"key": "brokerIP2"})
    bind_address: str = "0.0.0.0"
    listen_port: int = bounded(DEFAULT_PORT, 0, 65535)
    #: Also listens on `listenPort` - 2, the "VIP channel" of Java clients before 4.5.1.
    fast_listen_enable: bool = False
    namesrv_addr: list[str] = field(default_factory=list)
    #: Resolves the host names in `namesrv_addr` again after each `update_name_server_addr_period`, in ms.
    fetch_name_srv_addr_by_dns_lookup: bool = False
    update_name_server_addr_period: int = bounded(120_000, 10, DAY_MS)
    #: If `namesrv_addr` is not set, reads the list of NameServers from http://DOMAIN:8080/rocketmq/SUBGROUP, every
    #: `fetch_namesrv_addr_interval` ms.
    fetch_namesrv_addr_by_address_server: bool = False
    fetch_namesrv_addr_interval: int = bounded(10_000, 10, DAY_MS)
    rmq_address_server_domain: str = "jmenv.tbsite.net"
    rmq_address_server_sub_group: str = "nsaddr"
    broker_permission: int = bounded(PERM_READ | PERM_WRITE, 0, 7)
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    #: Creates the groups CID_RMQ_SYS_* on first use, even if `auto_create_subscription_group` is false.
    enable_create_sys_group: bool = True
    default_topic_queue_nums: int = bounded(8, 1, MAX_QUEUE_NUMS)
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    #: Region in responses to sends. Clients write it into their traces.
    region_id: str = "DefaultRegion"
    #: Whether clients write traces for messages of this broker.
    trace_on: bool = True
    long_polling_enable: bool = True
    #: Allows SQL92 subscriptions. Java's default is false.
    enable_property_filter: bool = True
    #: Filters redelivered messages by the group's subscription to their original topic.
    filter_support_retry: bool = False
    #: Slaves serve pulls, and responses suggest the broker for the next pull.
    slave_read_enable: bool = False
    #: Rejects pull consumers, which choose their queues themselves.
    reject_pull_consumer_enable: bool = False
    #: Disables groups with a lag of more than `consumer_fallbehind_threshold` bytes of the log.
    disable_consume_if_consumer_read_slowly: bool = False
    consumer_fallbehind_threshold: int = bounded(16 * 1024**3, 0, 1 << 62)
    store_reply_message_enable: bool = True
    #: Maximum number of responses to sends that wait for the disk or for slaves. Further sends get SYSTEM_BUSY.
    send_thread_pool_queue_capacity: int = bounded(10_000, 1, 1_000_000)
    #: Largest rates of the sends and of the deliveries of one client host, in messages and in bytes a second. 0 means
    #: no limit.
    client_rate_limit_messages: int = bounded(0, 0, 1 << 62)
    client_rate_limit_bytes: int = bounded(0, 0, 1 << 62)
    #: Maximum number of pops that wait for one queue or topic of a group.
    pop_polling_size: int = bounded(1024, 0, 1_000_000)
    #: Maximum number of pops that wait in total.
    max_pop_polling_size: int = bounded(WAITING_POPS, 0, 1_000_000)
    #: Longest time for which a pop checkpoint is only in memory, in ms.
    pop_ck_stay_buffer_time: int = bounded(10_000, 0, DAY_MS)
    #: A checkpoint is written to the log at the latest this long before its redelivery, in ms.
    pop_ck_stay_buffer_time_out: int = bounded(3_000, 2_000, DAY_MS)
    #: Maximum number of checkpoints in memory.
    pop_ck_max_buffer_size: int = bounded(200_000, 0, 10_000_000)
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_retry_topic_v2: bool = False
    retrieve_message_from_pop_retry_topic_v1: bool = True
    #: Percentage of pops that read the retry topics first.
    pop_from_retry_probability: int = bounded(20, 0, 100)
    #: Percentage of pops by priority that read the retry topics first.
    pop_from_retry_probability_for_priority: int = bounded(0, 0, 100)
    #: Whether the highest queue id has the highest priority. If false, queue 0 has the highest priority.
    priority_order_asc: bool = True
    #: Redelivered messages keep their queue id: the retry topic of POP has as many queues as the topic.
    use_separate_retry_queue: bool = False
    #: Maximum number of subscriptions of all clients to lite topics.
    max_lite_subscription_count: int = bounded(LITE_SUBSCRIPTIONS, 0, 10_000_000)
    #: Subscriptions that a client has not repeated for the timeout expire. Both in ms.
    lite_subscription_check_interval: int = bounded(120_000, 10, DAY_MS)
    lite_subscription_check_timeout_mills: int = bounded(180_000, 10, DAY_MS)
    #: Interval of the search for expired lite topics, in ms.
    lite_ttl_check_interval: int = bounded(120_000, 10, DAY_MS)
    #: Shortest expiration of a lite topic, and time after the start until the first search, in ms.
    min_lite_ttl: int = bounded(900_000, 0, DAY_MS, key="minLiteTTl")
    server_load_balancer_enable: bool = True
    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = bounded(-1, -1, MAX_QUEUE_NUMS)
    register_name_server_period: int = bounded(30_000, 1, MAX_INT)
    #: Always registers topics in parts. If false, only if a NameServer can't accept all topics at once.
    enable_split_registration: bool = False
    #: Number of topics in each part.
    split_registration_size: int = bounded(800, 2, MAX_INT)
    register_broker_timeout_mills: int = bounded(24_000, 100, DAY_MS)
    flush_consumer_offset_interval: int = bounded(5_000, 10, DAY_MS)
    channel_expired_timeout: int = bounded(120_000, 1_000, DAY_MS)
    reject_transaction_message: bool = False
    #: Age of a half message at its first transaction check, in ms.
    transaction_time_out: int = bounded(6_000, 0, MAX_INT)
    #: Interval of transaction checks, in ms.
    transaction_check_interval: int = bounded(30_000, 10, DAY_MS)
    #: Maximum number of checks of a half message.
    transaction_check_max: int = bounded(15, 0, MAX_INT)
    #: Longest wait of a half message, in ms, even if no producer of its group is connected.
    transaction_timeout_max: int = bounded(259_200_000, 1_000, MAX_INT)
    #: The broker writes an op message as soon as its size exceeds this number of bytes.
    transaction_op_msg_max_size: int = bounded(4096, 1, 1024 * 1024)
    #: The broker writes a smaller op message after this time, in ms.
    transaction_op_batch_interval: int = bounded(3_000, 0, DAY_MS)
    #: Time for which the broker keeps the last row of an idempotent writer, in ms.
    idempotent_writer_keep_time: int = bounded(DAY_MS, 1_000, MAX_INT)
    #: Maximum number of rows that the broker keeps, one for each writer and queue.
    idempotent_writer_max_num: int = bounded(100_000, 1, 10_000_000)
    #: Maximum number of deduplication ids that the broker keeps, about 230 bytes each.
    deduplication_max_num: int = bounded(DEDUPLICATION_IDS, 1, 20_000_000)
    #: Allows the recall of timer messages (RECALL_MESSAGE).
    recall_message_enable: bool = False
    #: A slave becomes acting master while its master is down.
    enable_slave_acting_master: bool = False
    #: An acting master delivers its master's delayed and popped messages to brokers with other names, which store them.
    enable_remote_escape: bool = False
    #: Interval at which a broker requests the live brokers of its name, in ms.
    sync_broker_member_group_period: int = bounded(1_000, 10, DAY_MS)
    #: NameServers remove a broker after this time without a heartbeat, in ms.
    broker_not_active_timeout_millis: int = bounded(10_000, 50, DAY_MS)
    #: A controller elects the master, and sets `brokerRole` and `brokerId`.
    enable_controller_mode: bool = False
    controller_addr: list[str] = field(default_factory=list)
    #: Interval at which a broker requests the current master from the controller, in ms.
    sync_broker_metadata_period: int = bounded(5_000, 10, DAY_MS)
    #: Interval at which a broker requests the leader of the controllers, in ms.
    sync_controller_metadata_period: int = bounded(10_000, 10, DAY_MS)
    #: Interval at which a master checks the in-sync set, in ms.
    check_sync_state_set_period: int = bounded(5_000, 10, DAY_MS)
    #: Interval of heartbeats to the controllers, in ms.
    broker_heartbeat_interval: int = bounded(1_000, 10, DAY_MS)
    #: Timeout of a heartbeat, in ms.
    send_heartbeat_timeout_millis: int = bounded(1_000, 10, DAY_MS)
    #: A controller considers a broker dead after this time without a heartbeat, in ms.
    controller_heart_beat_timeout_mills: int = bounded(10_000, 50, DAY_MS)
    #: If several brokers have equally long logs, the controller elects the broker with the lowest value.
    broker_election_priority: int = bounded(MAX_INT, 0, MAX_INT)
    broker_config_path: Path | None = None
    #: Port of the metrics for Prometheus, http://bindAddress:metricsPort/metrics. 0 turns them off.
    metrics_port: int = bounded(0, 0, 65535)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig, metadata={"key": None})
    store: StoreConfig = field(default_factory=_default_store, metadata={"key": None})
    auth: AuthConfig = field(default_factory=AuthConfig, metadata={"key": None})

    def set_role(self, role: BrokerRole, broker_id: int) -> None:
        """Sets the role and the broker id that a controller has assigned."""
        self.broker_role, self.broker_id = role, broker_id

    @property
    def ha_ip(self) -> str:
        """The address that slaves connect to."""
        return self.broker_ip1 if self.broker_ip2 is None else self.broker_ip2

    def resolved_ip(self) -> str:
        """Returns the IP address of `broker_ip1`, which each stored message contains.

        Resolves a host name, to an IPv4 address if it has one, as in Java. Raises ConfigError.
        """
        try:
            return str(ipaddress.ip_address(self.broker_ip1))
        except ValueError:
            pass
        try:
            return network.address_of(self.broker_ip1)
        except OSError as e:
            raise ConfigError(f"brokerIP1={self.broker_ip1}: can't be resolved: {e.strerror or e}") from e

    def __post_init__(self) -> None:
        self._name_servers: list[str] | None = None
        check_bounds(self)
        if self.enable_controller_mode:
            if self.enable_slave_acting_master:
                raise ConfigError("enableSlaveActingMaster=true: not with enableControllerMode, which elects a master")
            if not self.controller_addr:
                raise ConfigError("enableControllerMode=true: controllerAddr must name the controllers")
        elif self.broker_id < 0 or (self.broker_role is BrokerRole.SLAVE) != (self.broker_id > 0):
            # Java's `BrokerStartup` sets a master's id to 0 and ignores the id in the file. This can result in two
            # masters.
            raise ConfigError(
                f"brokerId={self.broker_id}, brokerRole={self.broker_role.value}: a master has brokerId=0, "
                "a slave (brokerRole=SLAVE) one from 1 on"
            )
        for key, address in (("brokerIP1", self.broker_ip1), ("brokerIP2", self.ha_ip)):
            try:
                ipaddress.ip_address(address)
            except ValueError:
                if not _HOST_NAME.fullmatch(address) or _NUMBERS.fullmatch(address):
                    raise ConfigError(f"{key}={address[:200]}: must be an IP address or a host name") from None
        for pattern in self.replication.ha_allowed_addresses:
            try:
                parse_pattern(pattern)
            except ValueError as e:
                raise ConfigError(f"haAllowedAddresses: {e}") from e
        if self.default_message_request_mode not in ("PULL", "POP"):
            raise ConfigError(f"defaultMessageRequestMode={self.default_message_request_mode}: PULL or POP")
        self.check_metrics()
        # As in `BrokerController.start`, the period is limited to 10 s to 60 s.
        self.register_name_server_period = max(10_000, min(self.register_name_server_period, 60_000))

    @property
    def name_servers(self) -> list[str]:
        """HOST:PORT of every NameServer: the results of the last lookup, or `namesrv_addr` without a lookup.

        With DNS, the result is empty until the first lookup succeeds. If the broker registered by host name first, it
        would later unregister the host names, and thus its registrations at their addresses.
        """
        if self._name_servers is not None:
            return self._name_servers
        return [] if self.fetch_name_srv_addr_by_dns_lookup else self.namesrv_addr

    @property
    def metrics_page(self) -> tuple[str, int] | None:
        """The address and the port of the Prometheus metrics page. None if the page is off."""
        return self.page_address(self.bind_address, self.metrics_port)

    @property
    def has_metrics(self) -> bool:
        """Whether the broker exports metrics."""
        return self.metrics_page is not None or self.has_exporter

    def set_name_servers(self, addresses: list[str]) -> None:
        """Sets the NameServers that a lookup has found."""
        self._name_servers = addresses
