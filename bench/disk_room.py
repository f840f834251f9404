"""Whether a measurement's files have room on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

#: From so much of the disk on brokers delete (diskSpaceCleanForciblyRatio).
_FULL = 0.85


def check_room(directory: Path, needed: int, remedy: str) -> None:
    """Raises SystemExit where brokers would begin to delete."""
    disk = shutil.disk_usage(directory)
    room = _FULL * (disk.used + disk.free) - disk.used
    if needed > room:
        raise SystemExit(
            f"it takes about {needed / 1e9:.1f} GB, and {directory.parent} has {room / 1e9:.1f} GB until it is "
            f"{_FULL:.0%} full, when brokers delete: {remedy}"
        )
