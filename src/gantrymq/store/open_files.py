"""Raises the limit of file descriptors for a broker process. Most descriptors are connections."""

from __future__ import annotations

from gantrymq.system import files

#: Enough for a store of some TB and the same number of connections.
_WANTED = 65_536


def raise_open_files_limit() -> int:
    """Raises the soft limit of descriptors, if useful and allowed, and returns it. For a broker's own process only."""
    soft, hard = files.descriptor_limits()
    wanted = min(_WANTED, hard)
    if wanted > soft:
        try:
            files.set_descriptor_limit(wanted)
        except (OSError, ValueError):
            # macOS accepts less than the hard limit that it reports.
            return soft
        return wanted
    return soft
