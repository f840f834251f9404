"""How many files a process may open, connections above all."""

from __future__ import annotations

from gantrymq.system import files

#: A store of some TB, with as many connections.
_WANTED = 65_536


def raise_open_files_limit() -> int:
    """Raises the soft limit of descriptors as far as is useful and allowed; the limit then. For a broker's process."""
    soft, hard = files.descriptor_limits()
    wanted = min(_WANTED, hard)
    if wanted > soft:
        try:
            files.set_descriptor_limit(wanted)
        except (OSError, ValueError):
            # macOS allows less than it says.
            return soft
        return wanted
    return soft
