"""Which log files may go, and when the disk is too full to take messages (`CleanCommitLogService`).

Told the time and the disk's use, it decides; `cleaner` carries it out.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gantrymq.store.config import StoreConfig, delete_hours
from gantrymq.system import clock, files

_HOUR_MS = 3_600_000


class Cleaning(NamedTuple):
    """Log files that were completed before `before_ms` go. `is_full`: no message is taken."""

    before_ms: float
    is_full: bool


class Retention:
    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        #: Somebody asked to delete what has expired, whatever the hour.
        self.is_asked = False

    def plan(self, now_ms: int, used_percent: float) -> Cleaning:
        """`now_ms` since the epoch; `used_percent` of the disk, of the fuller one where there are two."""
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
    """How much of the disk with `path` is used, as df says: what only root may use counts as used. Raises OSError."""
    while not files.exists(path):
        path = path.parent
    usage = files.disk_use(path)
    return 100 * usage.used / max(usage.used + usage.free, 1)
