"""The store's settings: directories, file sizes, flush intervals and retention (`store/config/MessageStoreConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.config import DAY_MS, MAX_INT, bounded, check_bounds
from gantrymq.errors import ConfigError
from gantrymq.protocol.command import MAX_FRAME_LENGTH
from gantrymq.protocol.delay_levels import DEFAULT_DELAY_LEVELS
from gantrymq.protocol.unsupported_features import features_of_settings
from gantrymq.store.delay_level import parse_delay_levels

ASYNC_FLUSH = "ASYNC_FLUSH"
SYNC_FLUSH = "SYNC_FLUSH"

#: Size of a consume queue unit, in bytes (`ConsumeQueue.CQ_STORE_UNIT_SIZE`).
UNIT_SIZE = 20
#: Maximum size of a pull result, in bytes (`DefaultMessageStore.MAX_PULL_MSG_SIZE`).
MAX_PULL_BYTES = 128 * 1024 * 1024


@dataclass(slots=True)
class StoreConfig:
    """The store's settings, with Java's keys and defaults. Sizes are in bytes.

    Raises ConfigError if a value is out of range.

    Flushing:
    - With `flush_disk_type` SYNC_FLUSH, a message is acknowledged when it is on disk. With ASYNC_FLUSH, it is
      acknowledged when it is in the page cache. It then survives a crash of the process. A power failure within
      `flush_interval_commit_log_ms` can lose it.
    - If a flush takes longer than `sync_flush_timeout_ms`, the producer gets the status of a flush timeout.
    - A queue file is flushed when it has `flush_consume_queue_least_pages` unwritten pages of 4 KiB. All queue files
      are flushed at least every `flush_consume_queue_thorough_interval_ms`, more often if that is fast. Recovery can
      rebuild lost units from the log.

    Directories:
    - The commit log is in `store_path_commit_log`, by default `commitlog` in `store_path_root_dir`. New files are
      distributed over several directories; see `log_paths`.
    - Files in `read_only_commit_log_store_paths` are read and expire, but no file is created there.

    Index and checksums:
    - With `message_index_enable`, messages can be found by key. An index file has `max_index_num` entries. A query
      returns at most `max_msgs_num_batch` messages.
    - With `enabled_append_prop_crc`, each record has a checksum of its whole content as its last property. With
      `force_verify_prop_crc`, recovery ends the log at a record without a valid checksum.

    Retention:
    - Log files older than `file_reserved_time` hours are deleted in the hours `delete_when`. If disk usage exceeds
      `disk_max_used_space_ratio` per cent, they are deleted at any time.
    - From `disk_space_clean_forcibly_ratio` on, younger files are deleted, too, unless `clean_file_forcibly_enable` is
      off.
    - Above `disk_space_warning_level_ratio`, messages are rejected.
    - Ratios are limited to Java's ranges, but the last two may be up to 100. With 100, a full disk fails a single send,
      not the broker.

    Delayed messages:
    - A message can be delayed by up to `timer_max_delay_sec`, with a precision of `timer_precision_ms` (100, 200, 500
      or 1000). It is stored again every `timer_roll_window_slot` slots of that length.
    - From `timer_congest_num_each_slot` messages in a slot on, a growing share of messages is rejected; from twice this
      number on, all are.

    Compaction topics:
    - A compaction log has files of about `compaction_mapped_file_size`, and files of units of
      `compaction_cq_mapped_file_size`. Full files are compacted every `compaction_schedule_internal` ms. A compaction
      uses `max_offset_map_size` of memory for keys.
    - A message without a body stays for `compaction_tombstone_retention_ms`. Java has no such setting.

    Tiered storage:
    - With `tiered_store_file_path`, full log files are copied into a directory, or below a URL such as
      `s3://bucket/path`. Log files are deleted when their copies exist. "" turns it off.
    - Copies stay for `tiered_store_file_reserved_time` hours, and as long as the file of the log.

    Light queues:
    - With `enable_lmq`, a message is dispatched to the light queues that its property INNER_MULTI_DISPATCH names. A
      change takes effect at the next start.
    - With `enable_lmq_quota`, a message that would create more than `max_lmq_consume_queue_num` light queues is
      refused.
    """

    store_path_root_dir: Path
    store_path_commit_log: list[Path] | None = None
    read_only_commit_log_store_paths: list[Path] | None = None
    mapped_file_size_commit_log: int = bounded(1024 * 1024 * 1024, 4096, MAX_INT)
    mapped_file_size_consume_queue: int = bounded(300_000 * UNIT_SIZE, UNIT_SIZE, MAX_INT - UNIT_SIZE)
    flush_disk_type: str = ASYNC_FLUSH
    sync_flush_timeout_ms: int = bounded(5000, 1, DAY_MS, key="syncFlushTimeout")
    flush_interval_commit_log_ms: int = bounded(500, 1, DAY_MS, key="flushIntervalCommitLog")
    flush_interval_consume_queue_ms: int = bounded(1000, 1, DAY_MS, key="flushIntervalConsumeQueue")
    flush_consume_queue_least_pages: int = bounded(2, 0, 1 << 19)
    flush_consume_queue_thorough_interval_ms: int = bounded(60_000, 0, DAY_MS, key="flushConsumeQueueThoroughInterval")
    max_message_size: int = bounded(4 * 1024 * 1024, 10, MAX_FRAME_LENGTH)
    max_filter_message_size: int = bounded(16_000, 0, 100_000 * UNIT_SIZE)
    max_transfer_bytes_on_message_in_memory: int = bounded(256 * 1024, 1, MAX_PULL_BYTES)
    max_transfer_count_on_message_in_memory: int = bounded(32, 1, 100_000)
    max_transfer_bytes_on_message_in_disk: int = bounded(64 * 1024, 1, MAX_PULL_BYTES)
    max_transfer_count_on_message_in_disk: int = bounded(8, 1, 100_000)
    # Limits for clients that request bulk reads, which read mapped memory sequentially. Java has no such settings.
    max_bulk_transfer_bytes: int = bounded(4 * 1024 * 1024, 1, MAX_PULL_BYTES)
    max_bulk_transfer_count: int = bounded(10_000, 1, 100_000)
    #: Size of the log's end that is assumed to be in the page cache, in per cent of the machine's memory.
    access_message_in_memory_max_ratio: int = bounded(40, 0, 100)
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    message_index_enable: bool = True
    max_hash_slot_num: int = bounded(5_000_000, 1, 50_000_000)
    max_index_num: int = bounded(20_000_000, 2, 80_000_000)
    max_msgs_num_batch: int = bounded(64, 1, 1_000_000)
    enabled_append_prop_crc: bool = field(default=False, metadata={"key": "enabledAppendPropCRC"})
    force_verify_prop_crc: bool = field(default=False, metadata={"key": "forceVerifyPropCRC"})
    #: Hours of the day in local time, such as `04` or `04;16`.
    delete_when: str = "04"
    file_reserved_time: int = bounded(72, 0, MAX_INT)
    clean_file_forcibly_enable: bool = True
    disk_max_used_space_ratio: int = bounded(75, 0, 100)
    disk_space_clean_forcibly_ratio: int = bounded(85, 0, 100)
    disk_space_warning_level_ratio: int = bounded(90, 0, 100)
    timer_wheel_enable: bool = True
    timer_precision_ms: int = bounded(1000, 1, MAX_INT)
    timer_roll_window_slot: int = bounded(2 * 24 * 3600, 0, MAX_INT)
    timer_max_delay_sec: int = bounded(3 * 24 * 3600, 1, MAX_INT)
    timer_congest_num_each_slot: int = bounded(MAX_INT, 1, MAX_INT)
    timer_flush_interval_ms: int = bounded(1000, 1, DAY_MS)
    mapped_file_size_timer_log: int = bounded(100 * 1024 * 1024, 4096, MAX_INT)
    compaction_mapped_file_size: int = bounded(100 * 1024 * 1024, 4096, MAX_INT)
    compaction_cq_mapped_file_size: int = bounded(10 * 1024 * 1024, 460, MAX_INT // 6)
    compaction_schedule_internal: int = bounded(15 * 60 * 1000, 1, DAY_MS)
    max_offset_map_size: int = bounded(100 * 1024 * 1024, 4096, MAX_INT)
    compaction_tombstone_retention_ms: int = bounded(DAY_MS, 0, MAX_INT)
    tiered_store_file_path: str = ""
    tiered_store_file_reserved_time: int = bounded(72, 0, MAX_INT)
    enable_lmq: bool = False
    enable_lmq_quota: bool = False
    max_lmq_consume_queue_num: int = bounded(20_000, 0, MAX_INT)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.writable_commit_log_directories:
            raise ConfigError("readOnlyCommitLogStorePaths has all directories of the log: leave one out")
        if self.flush_disk_type not in (ASYNC_FLUSH, SYNC_FLUSH):
            raise ConfigError(f"flushDiskType={self.flush_disk_type}: {ASYNC_FLUSH} or {SYNC_FLUSH}")
        parse_delay_levels(self.message_delay_level)
        delete_hours(self.delete_when)
        # MessageStoreConfig.getDiskMaxUsedSpaceRatio, DefaultMessageStore.CleanCommitLogService.
        self.disk_max_used_space_ratio = max(10, min(self.disk_max_used_space_ratio, 95))
        self.disk_space_clean_forcibly_ratio = max(30, min(self.disk_space_clean_forcibly_ratio, 100))
        self.disk_space_warning_level_ratio = max(35, min(self.disk_space_warning_level_ratio, 100))
        # MessageStoreConfig.setTimerPrecisionMs
        self.timer_precision_ms = max((ms for ms in (200, 500, 1000) if ms <= self.timer_precision_ms), default=100)
        # MessageStoreConfig.getMappedFileSizeConsumeQueue: whole units, rounded up.
        self.mapped_file_size_consume_queue = -(-self.mapped_file_size_consume_queue // UNIT_SIZE) * UNIT_SIZE

    @property
    def commit_log_directories(self) -> list[Path]:
        """All directories with files of the commit log, also read-only ones."""
        return list(dict.fromkeys([*self._commit_log_paths, *(self.read_only_commit_log_store_paths or [])]))

    @property
    def writable_commit_log_directories(self) -> list[Path]:
        """The directories that get new files of the commit log."""
        read_only = self.read_only_commit_log_store_paths or []
        return [path for path in dict.fromkeys(self._commit_log_paths) if path not in read_only]

    @property
    def _commit_log_paths(self) -> list[Path]:
        return self.store_path_commit_log or [self.store_path_root_dir / "commitlog"]

    @property
    def consume_queue_directory(self) -> Path:
        return self.store_path_root_dir / "consumequeue"

    @property
    def index_directory(self) -> Path:
        return self.store_path_root_dir / "index"

    @property
    def light_queue_directory(self) -> Path:
        return self.store_path_root_dir / "lightqueue"

    @property
    def config_directory(self) -> Path:
        """The directory of `topics.json` and similar files."""
        return self.store_path_root_dir / "config"


def check_supported(properties: Mapping[str, str]) -> None:
    """Raises ConfigError for a setting whose files this broker can't read.

    Otherwise the broker would treat the store as empty.
    """
    for setting, feature in features_of_settings(properties):
        raise ConfigError(f"{setting}: {feature.text}")


def delete_hours(delete_when: str) -> frozenset[int]:
    """Parses the hours of `deleteWhen`, such as `04;16`. Raises ConfigError."""
    hours = [hour.strip() for hour in delete_when.split(";")]
    if not all(hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24 for hour in hours):
        raise ConfigError(f"deleteWhen={delete_when[:200]}: hours from 0 to 23 with ; between them")
    return frozenset(int(hour) for hour in hours)
