"""The keys of replication in broker.conf, Java's names and defaults (`store/config/MessageStoreConfig`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.config import DAY_MS, MAX_INT, bounded, check_bounds
from gantrymq.replication.frames import MAX_BODY


@dataclass(slots=True)
class ReplicationConfig:
    """Sizes in bytes, times in ms. Raises ConfigError for a value out of bounds.

    A master listens for slaves at `ha_listen_port` (0: a free port) and sends each of them `ha_transfer_batch_size` at
    a time, slaves of ours eight times that, with `ha_flow_control_enable` no more than
    `max_ha_transfer_byte_in_second`. Both sides give a sign of life every `ha_send_heartbeat_interval`, and leave who
    was silent for `ha_housekeeping_interval`. A slave follows `ha_master_address`, or, without it, whom the NameServers
    tell.

    `in_sync_replicas` copies, the master's among them, are waited for by a send to a SYNC_MASTER, at most
    `slave_timeout`; there must be `min_in_sync_replicas`, with `enable_auto_in_sync_replicas` as many as there are but
    at least that. A slave that is `ha_max_gap_not_in_sync` behind doesn't count. An empty slave takes the whole log,
    with `sync_from_last_file` no more than its last file.
    """

    ha_listen_port: int = bounded(0, 0, 65535)
    ha_master_address: str = ""
    ha_send_heartbeat_interval: int = bounded(5_000, 10, DAY_MS)
    ha_housekeeping_interval: int = bounded(20_000, 50, DAY_MS)
    ha_transfer_batch_size: int = bounded(32 * 1024, 1, MAX_BODY)
    ha_max_gap_not_in_sync: int = bounded(256 * 1024 * 1024, 1, MAX_INT)
    #: A slave that lags behind for so long leaves the sync-state set, in controller mode. Java's default is 15,000. A
    #: send with the default timeout is answered after 2,000 ms: it is to succeed although one slave hangs.
    ha_max_time_slave_not_catchup: int = bounded(1_500, 10, DAY_MS)
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = bounded(100 * 1024 * 1024, 1, 1 << 40)
    #: Connections between our brokers are TLS: `tls.server.*` and `tls.client.*` say how. Java's know none.
    ha_tls_enable: bool = False
    #: With `authenticationEnabled`: peers that can't sign may take part, such as Java's slaves and masters.
    ha_allow_unsigned: bool = False
    #: Addresses from which slaves may connect, in the form of plain_acl.yml, separated by ;. Empty: any.
    ha_allowed_addresses: list[str] = field(default_factory=list)
    sync_from_last_file: bool = False
    in_sync_replicas: int = bounded(1, 1, 1000)
    min_in_sync_replicas: int = bounded(1, 1, 1000)
    enable_auto_in_sync_replicas: bool = False
    all_ack_in_sync_state_set: bool = False
    slave_timeout: int = bounded(3_000, 0, DAY_MS)

    def __post_init__(self) -> None:
        check_bounds(self)
