"""Checks that the disk has enough free space for a measurement."""

from __future__ import annotations

import shutil
from pathlib import Path

#: Disk usage from which on brokers delete files (`diskSpaceCleanForciblyRatio`).
_FULL = 0.85


def check_capacity(directory: Path, needed: int, remedy: str) -> None:
    """Raises SystemExit if the disk would become so full that brokers delete files."""
    disk = shutil.disk_usage(directory)
    room = _FULL * (disk.used + disk.free) - disk.used
    if needed > room:
        raise SystemExit(
            f"it takes about {needed / 1e9:.1f} GB, and {directory.parent} has {room / 1e9:.1f} GB until it is "
            f"{_FULL:.0%} full, when brokers delete: {remedy}"
        )
