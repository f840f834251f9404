"""Ports for servers whose address a test needs before they start, or that restart at the same address.

A server can ask the kernel for a free port (port 0). The kernel can assign the same port again as soon as the server
stops, and parallel tests start a hundred servers per second. The ports of this module are therefore below the range
that the kernel assigns from (32768 and above on Linux).
"""

from __future__ import annotations

import socket
from random import SystemRandom

#: Not the `random` module: hypothesis sets its seed, to the same value in every process.
_random = SystemRandom()
#: Every tenth port. A broker also uses neighbours of its port: one above for its slaves, two below for the fast port.
_PORTS = range(12_005, 31_000, 10)


def free_port(count: int = 1) -> int:
    """Returns a port of 127.0.0.1 that is free and that the kernel never assigns. Its neighbours are free as well.

    With `count`, so many ports are free, at distances of 10.
    """
    while True:
        port = _random.choice(_PORTS)
        if all(_is_free(port + 10 * n) for n in range(count)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
