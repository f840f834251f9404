"""The replication keys of broker.conf, with Java's names and defaults (`store/config/MessageStoreConfig`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.config import DAY_MS, MAX_INT, bounded, check_bounds
from gantrymq.replication.frames import MAX_BODY


@dataclass(slots=True)
class ReplicationConfig:
    """The replication keys. Sizes are in bytes, times in milliseconds. Raises ConfigError for a value out of bounds.

    Connections:
    - A master listens for slaves at `ha_listen_port` (0 selects a free port).
    - The master sends at most `ha_transfer_batch_size` at a time, and eight times as much to GantryMQ slaves.
    - If `ha_flow_control_enable` is set, each connection is limited to `max_ha_transfer_byte_in_second`.
    - Both sides send a heartbeat every `ha_send_heartbeat_interval`. They close a connection that is silent for
      `ha_housekeeping_interval`.
    - A slave follows `ha_master_address`. If it is empty, the NameServers provide the master.

    Waiting for slaves:
    - A send to a SYNC_MASTER waits for `in_sync_replicas` copies, including the master's, for at most `slave_timeout`.
    - At least `min_in_sync_replicas` copies must be in sync. With `enable_auto_in_sync_replicas`, a send waits for all
      in-sync copies, but at least for that number.
    - A slave that lags behind by `ha_max_gap_not_in_sync` does not count.

    An empty slave copies the whole log, or only the last file if `sync_from_last_file` is set.
    """

    ha_listen_port: int = bounded(0, 0, 65535)
    ha_master_address: str = ""
    ha_send_heartbeat_interval: int = bounded(5_000, 10, DAY_MS)
    ha_housekeeping_interval: int = bounded(20_000, 50, DAY_MS)
    ha_transfer_batch_size: int = bounded(32 * 1024, 1, MAX_BODY)
    ha_max_gap_not_in_sync: int = bounded(256 * 1024 * 1024, 1, MAX_INT)
    #: In controller mode, a slave that lags for this time leaves the sync-state set. Java's default is 15,000. With
    #: this shorter default, a send still succeeds within its default timeout if one slave hangs: it takes 2,000 ms.
    ha_max_time_slave_not_catchup: int = bounded(1_500, 10, DAY_MS)
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = bounded(100 * 1024 * 1024, 1, 1 << 40)
    #: Use TLS between GantryMQ brokers, configured by `tls.server.*` and `tls.client.*`. Java brokers can't do this.
    ha_tls_enable: bool = False
    #: With `authenticationEnabled`: also accept peers that cannot sign, such as Java's slaves and masters.
    ha_allow_unsigned: bool = False
    #: Addresses from which slaves may connect, in the form of plain_acl.yml, separated by `;`. Empty allows all.
    ha_allowed_addresses: list[str] = field(default_factory=list)
    sync_from_last_file: bool = False
    in_sync_replicas: int = bounded(1, 1, 1000)
    min_in_sync_replicas: int = bounded(1, 1, 1000)
    enable_auto_in_sync_replicas: bool = False
    all_ack_in_sync_state_set: bool = False
    slave_timeout: int = bounded(3_000, 0, DAY_MS)

    def __post_init__(self) -> None:
        check_bounds(self)
