"""Ports for servers whose address a test needs before they start, or that restart at the same address.

A server can ask the kernel for a free port (port 0). The kernel can assign the same port again as soon as the server
stops, and parallel tests start a hundred servers per second. The ports of this module are therefore below the range
that the kernel assigns from (32768 and above on Linux).
"""

from __future__ import annotations

import os
import socket
from itertools import cycle
from random import SystemRandom

#: The number of processes that run tests at the same time, and the number of this one. Each has ports of its own: a
#: port is still free for other processes until the test's server has started.
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
#: Space for the ports of the servers of one call. A broker also uses neighbours of its port: one above for its slaves,
#: two below for the fast port.
_PORTS = list(range(12_005, 31_000, 100))[_PROCESS::_PROCESSES]
# Not the `random` module: hypothesis sets its seed, to the same value in every process.
SystemRandom().shuffle(_PORTS)
_next = cycle(_PORTS)


def free_port(count: int = 1) -> int:
    """Returns a port of 127.0.0.1 that is free and that the kernel never assigns. Its neighbours are free as well.

    With `count`, up to 10, so many ports are free, at distances of 10.
    """
    while True:
        port = next(_next)
        if all(_is_free(port + 10 * n) for n in range(count)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
