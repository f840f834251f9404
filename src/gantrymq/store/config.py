"""Where the store's files are, how large they get, how often they are flushed (`store/config/MessageStoreConfig`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.store.delay_level import parse_delay_levels

ASYNC_FLUSH = "ASYNC_FLUSH"
SYNC_FLUSH = "SYNC_FLUSH"

#: Bytes of one unit of a consume queue (`ConsumeQueue.CQ_STORE_UNIT_SIZE`).
UNIT_SIZE = 20
#: A file's size is an int in Java.
_MAX_FILE_SIZE = (1 << 31) - 1


@dataclass(slots=True)
class StoreConfig:
    """Java's keys and defaults; sizes in bytes. Raises ConfigError for a value out of bounds.

    `flush_disk_type` SYNC_FLUSH: a message is acknowledged when it is on the disk; ASYNC_FLUSH: when it is in the page
    cache, so that it outlives the process but not a power failure within `flush_interval_commit_log_ms`.
    A queue file is written to the disk when it has `flush_consume_queue_least_pages` of 4 KiB to write, and in any case
    every `flush_consume_queue_thorough_interval_ms`, or sooner where that is quick: what is lost can be rebuilt from
    the log.
    """

    store_path_root_dir: Path
    store_path_commit_log: Path | None = None
    mapped_file_size_commit_log: int = field(
        default=1024 * 1024 * 1024, metadata={"minimum": 4096, "maximum": _MAX_FILE_SIZE}
    )
    mapped_file_size_consume_queue: int = field(
        default=300_000 * UNIT_SIZE, metadata={"minimum": UNIT_SIZE, "maximum": _MAX_FILE_SIZE - UNIT_SIZE}
    )
    flush_disk_type: str = ASYNC_FLUSH
    flush_interval_commit_log_ms: int = field(default=500, metadata={"key": "flushIntervalCommitLog", "minimum": 1})
    flush_interval_consume_queue_ms: int = field(
        default=1000, metadata={"key": "flushIntervalConsumeQueue", "minimum": 1}
    )
    flush_consume_queue_least_pages: int = field(default=2, metadata={"minimum": 0})
    flush_consume_queue_thorough_interval_ms: int = field(
        default=60_000, metadata={"key": "flushConsumeQueueThoroughInterval", "minimum": 0}
    )
    max_message_size: int = field(default=4 * 1024 * 1024, metadata={"minimum": 10, "maximum": _MAX_FILE_SIZE})
    max_filter_message_size: int = field(default=16_000, metadata={"minimum": 0})
    max_transfer_bytes_on_message_in_memory: int = field(default=256 * 1024, metadata={"minimum": 1})
    max_transfer_count_on_message_in_memory: int = field(default=32, metadata={"minimum": 1})
    max_transfer_bytes_on_message_in_disk: int = field(default=64 * 1024, metadata={"minimum": 1})
    max_transfer_count_on_message_in_disk: int = field(default=8, metadata={"minimum": 1})
    #: Per cent of the machine's memory: as much of the log's end is taken to be in the page cache.
    access_message_in_memory_max_ratio: int = field(default=40, metadata={"minimum": 0, "maximum": 100})
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    def __post_init__(self) -> None:
        for name, spec in self.__dataclass_fields__.items():
            value, key = getattr(self, name), spec.metadata.get("key", name)
            minimum, maximum = spec.metadata.get("minimum"), spec.metadata.get("maximum")
            if minimum is not None and value < minimum:
                raise ConfigError(f"{key}={value}: at least {minimum}")
            if maximum is not None and value > maximum:
                raise ConfigError(f"{key}={value}: at most {maximum}")
        if self.flush_disk_type not in (ASYNC_FLUSH, SYNC_FLUSH):
            raise ConfigError(f"flushDiskType={self.flush_disk_type}: {ASYNC_FLUSH} or {SYNC_FLUSH}")
        parse_delay_levels(self.message_delay_level)
        # MessageStoreConfig.getMappedFileSizeConsumeQueue: whole units, rounded up.
        self.mapped_file_size_consume_queue = -(-self.mapped_file_size_consume_queue // UNIT_SIZE) * UNIT_SIZE

    @property
    def commit_log_directory(self) -> Path:
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def consume_queue_directory(self) -> Path:
        return self.store_path_root_dir / "consumequeue"

    @property
    def config_directory(self) -> Path:
        """Where topics.json and the like are."""
        return self.store_path_root_dir / "config"
