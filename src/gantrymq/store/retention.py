"""Decides which log files expire and when the disk is too full for messages (`CleanCommitLogService`).

The time and the disk usage are arguments. `cleaner` deletes the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gantrymq.store.config import StoreConfig, delete_hours
from gantrymq.system import clock, files

_HOUR_MS = 3_600_000


class Cleaning(NamedTuple):
    """The log files completed before `before_ms` are deleted. With `is_full`, messages are rejected."""

    before_ms: float
    is_full: bool


class Retention:
    """Plans the deletion of expired log files."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        #: Whether an administrator has requested the deletion of expired files at any hour.
        self.is_asked = False

    def plan(self, now_ms: int, used_percent: float) -> Cleaning:
        """Returns the plan for a round. `now_ms` is since the epoch. `used_percent` refers to the fullest disk."""
        config = self._config
        is_full = used_percent > config.disk_space_warning_level_ratio
        is_urgent = is_full or used_percent > config.disk_space_clean_forcibly_ratio
        if is_urgent and config.clean_file_forcibly_enable:
            return Cleaning(float("inf"), is_full)
        is_due = (
            is_urgent
            or used_percent > config.disk_max_used_space_ratio
            or clock.localtime(now_ms / 1000).tm_hour in delete_hours(config.delete_when)
            or self.is_asked
        )
        return Cleaning(now_ms - config.file_reserved_time * _HOUR_MS if is_due else float("-inf"), is_full)


def used_percent(path: Path) -> float:
    """Returns the used percentage of the disk of `path`, as `df`, with root's reserved blocks. Raises OSError."""
    while not files.exists(path):
        path = path.parent
    usage = files.disk_use(path)
    return 100 * usage.used / max(usage.used + usage.free, 1)
