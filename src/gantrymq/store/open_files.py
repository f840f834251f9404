"""How many files a process may open: until Python 3.13 each mapped file keeps a descriptor."""

from __future__ import annotations

import resource

#: A store of some TB, with as many connections.
_WANTED = 65_536


def raise_open_files_limit() -> int:
    """Raises the soft limit of descriptors as far as is useful and allowed; the limit then.

    For a broker's process, before it makes its store: that takes a share of the limit for its queues.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _WANTED
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # macOS allows less than it says.
            return soft
        return wanted
    return soft
