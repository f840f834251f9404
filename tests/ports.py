"""Ports for servers that a test names before they listen, or that come back where they were.

A port of the kernel's choice (0) is the next server's as soon as it is free, and tests that run side by side start a
hundred servers a second. These are below the range of which the kernel takes any (32768 on Linux).
"""

from __future__ import annotations

import socket
from random import SystemRandom

#: Not `random` itself: hypothesis sets its seed, the same in every process.
_random = SystemRandom()
#: One in ten: a broker's neighbours (the slaves' port above it, the fast one two below) are nobody's.
_PORTS = range(12_005, 31_000, 10)


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens, nor at those beside it, and that nobody is given by chance."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := _random.choice(_PORTS)))
            except OSError:
                continue
        return port
