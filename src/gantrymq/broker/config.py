"""The broker's configuration, under Java's key names (`BrokerConfig`, `NettyServerConfig`)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gantrymq.auth.address_pattern import parse_pattern
from gantrymq.auth.config import AuthConfig
from gantrymq.config import DAY_MS, MAX_INT, bounded, check_bounds
from gantrymq.errors import ConfigError
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.remoting.tls import TlsConfig
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig
from gantrymq.system import network

#: Labels of up to 63 letters, digits and hyphens (RFC 1123); numbers alone are an address, or none.
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_NUMBERS = re.compile(r"[0-9.]+")
#: A topic with more queues on one broker than this is a mistake: BenchmarkTest, the largest of Java's own, has 1,024.
MAX_QUEUE_NUMS = 65_536
#: BrokerStartup sets this one; BrokerConfig's own default isn't used.
DEFAULT_PORT = 10911


class BrokerRole(Enum):
    """What a broker is to those of the same name (`store/config/BrokerRole`)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    #: Sends wait until inSyncReplicas brokers have the message.
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _default_store() -> StoreConfig:
    return StoreConfig(store_path_root_dir=Path.home() / "store")


@dataclass
class BrokerConfig(TlsConfig):
    """One broker. `namesrv_addr` are host:port of every NameServer; `listen_port` 0 takes any free port.

    `broker_ip1` is the address that clients are told; it must be one that they reach. `broker_config_path` is the file
    that the configuration came from: what is changed from outside is written to it.
    """

    broker_name: str = field(default_factory=network.host_name)
    broker_cluster_name: str = "DefaultCluster"
    #: 0 is the master, others are slaves; in controller mode the controller gives it.
    broker_id: int = bounded(0, -1, MAX_INT)
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    broker_ip1: str = field(default="127.0.0.1", metadata={"key": "brokerIP1"})
    bind_address: str = "0.0.0.0"
    listen_port: int = bounded(DEFAULT_PORT, 0, 65535)
    #: Listens on listenPort - 2, too: the "VIP channel", which Java's clients before 4.5.1 send to.
    fast_listen_enable: bool = False
    namesrv_addr: list[str] = field(default_factory=list)
    broker_permission: int = bounded(PERM_READ | PERM_WRITE, 0, 7)
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = bounded(8, 1, MAX_QUEUE_NUMS)
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    #: What answers to sends tell clients that write traces (`regionId`, `traceOn`).
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    long_polling_enable: bool = True
    #: SQL92 subscriptions; Java's default is false.
    enable_property_filter: bool = True
    #: Filters what is consumed again by what the group says of the topic that it came from.
    filter_support_retry: bool = False
    #: Clients are told from which broker of the set to pull, and a slave answers them.
    slave_read_enable: bool = False
    store_reply_message_enable: bool = True
    #: So many sends may wait for the disk with SYNC_FLUSH; further ones are answered SYSTEM_BUSY.
    send_thread_pool_queue_capacity: int = bounded(10_000, 1, 1_000_000)
    #: Pops that wait for one queue or topic of a group, and in all.
    pop_polling_size: int = bounded(1024, 0, 1_000_000)
    max_pop_polling_size: int = bounded(100_000, 0, 1_000_000)
    #: What was popped is in memory alone for so many ms, but not in the last ms before it comes back; so many pops.
    pop_ck_stay_buffer_time: int = bounded(10_000, 0, DAY_MS)
    pop_ck_stay_buffer_time_out: int = bounded(3_000, 2_000, DAY_MS)
    pop_ck_max_buffer_size: int = bounded(200_000, 0, 10_000_000)
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_retry_topic_v2: bool = False
    retrieve_message_from_pop_retry_topic_v1: bool = True
    #: In percent of pops what comes back is looked at first.
    pop_from_retry_probability: int = bounded(20, 0, 100)
    server_load_balancer_enable: bool = True
    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = bounded(-1, -1, MAX_QUEUE_NUMS)
    register_name_server_period: int = bounded(30_000, 1, MAX_INT)
    #: All topics are always registered in parts, of so many topics; else only where one registration is too large.
    enable_split_registration: bool = False
    split_registration_size: int = bounded(800, 2, MAX_INT)
    register_broker_timeout_mills: int = bounded(24_000, 100, DAY_MS)
    flush_consumer_offset_interval: int = bounded(5_000, 10, DAY_MS)
    channel_expired_timeout: int = bounded(120_000, 1_000, DAY_MS)
    reject_transaction_message: bool = False
    #: ms from a half message's birth to the first question about it, and between two rounds of questions.
    transaction_time_out: int = bounded(6_000, 0, MAX_INT)
    transaction_check_interval: int = bounded(30_000, 10, DAY_MS)
    transaction_check_max: int = bounded(15, 0, MAX_INT)
    #: ms that a half message waits at all, also when its producers are away.
    transaction_timeout_max: int = bounded(259_200_000, 1_000, MAX_INT)
    #: Op messages are written when they have so many bytes, or after so many ms.
    transaction_op_msg_max_size: int = bounded(4096, 1, 1024 * 1024)
    transaction_op_batch_interval: int = bounded(3_000, 0, DAY_MS)
    #: So long, in ms, it is known up to which row an idempotent writer has written, and of so many at most.
    idempotent_writer_keep_time: int = bounded(DAY_MS, 1_000, MAX_INT)
    idempotent_writer_max_num: int = bounded(100_000, 1, 10_000_000)
    #: Delayed messages may be taken back (RECALL_MESSAGE).
    recall_message_enable: bool = False
    #: A slave stands in for a master that is gone; what it delivers goes to brokers of other names.
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False
    #: ms between two questions who is there, and after which NameServers take a silent broker for dead.
    sync_broker_member_group_period: int = bounded(1_000, 10, DAY_MS)
    broker_not_active_timeout_millis: int = bounded(10_000, 50, DAY_MS)
    #: A controller says who is master; brokerRole and brokerId are what it says.
    enable_controller_mode: bool = False
    controller_addr: list[str] = field(default_factory=list)
    #: ms between two questions who is master, which controller leads, and whether all in sync still are.
    sync_broker_metadata_period: int = bounded(5_000, 10, DAY_MS)
    sync_controller_metadata_period: int = bounded(10_000, 10, DAY_MS)
    check_sync_state_set_period: int = bounded(5_000, 10, DAY_MS)
    #: ms between two signs of life to controllers, for an answer, and after which without one the broker is dead.
    broker_heartbeat_interval: int = bounded(1_000, 10, DAY_MS)
    send_heartbeat_timeout_millis: int = bounded(1_000, 10, DAY_MS)
    controller_heart_beat_timeout_mills: int = bounded(10_000, 50, DAY_MS)
    #: Of brokers whose logs are equally long the one with the lowest is elected.
    broker_election_priority: int = bounded(MAX_INT, 0, MAX_INT)
    broker_config_path: Path | None = None
    #: Where Prometheus asks, http://bindAddress:metricsPort/metrics; 0: nowhere.
    metrics_port: int = bounded(0, 0, 65535)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig, metadata={"key": None})
    store: StoreConfig = field(default_factory=_default_store, metadata={"key": None})
    auth: AuthConfig = field(default_factory=AuthConfig, metadata={"key": None})

    def resolved_ip(self) -> str:
        """The address of `broker_ip1`, which is in each message that is stored; IPv4 if it has one, as in Java.

        Asks the resolver for a name's. Raises ConfigError.
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
        check_bounds(self)
        if self.enable_controller_mode:
            if self.enable_slave_acting_master:
                raise ConfigError("enableSlaveActingMaster=true: not with enableControllerMode, which elects a master")
            if not self.controller_addr:
                raise ConfigError("enableControllerMode=true: controllerAddr must name the controllers")
        elif self.broker_id < 0 or (self.broker_role is BrokerRole.SLAVE) != (self.broker_id > 0):
            # Java's BrokerStartup gives a master the id 0, whatever the file says: two masters of one name.
            raise ConfigError(
                f"brokerId={self.broker_id}, brokerRole={self.broker_role.value}: a master has brokerId=0, "
                "a slave (brokerRole=SLAVE) one from 1 on"
            )
        try:
            ipaddress.ip_address(self.broker_ip1)
        except ValueError:
            if not _HOST_NAME.fullmatch(self.broker_ip1) or _NUMBERS.fullmatch(self.broker_ip1):
                raise ConfigError(f"brokerIP1={self.broker_ip1[:200]}: must be an IP address or a host name") from None
        for pattern in self.replication.ha_allowed_addresses:
            try:
                parse_pattern(pattern)
            except ValueError as e:
                raise ConfigError(f"haAllowedAddresses: {e}") from e
        if self.default_message_request_mode not in ("PULL", "POP"):
            raise ConfigError(f"defaultMessageRequestMode={self.default_message_request_mode}: PULL or POP")
        # BrokerController.start: registration at most every 10 s, at least every 60 s.
        self.register_name_server_period = max(10_000, min(self.register_name_server_period, 60_000))
