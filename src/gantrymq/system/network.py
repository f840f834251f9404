"""Binds sockets, resolves addresses, and provides the name of this machine.

asyncio opens connections, except those of threads without an event loop (`connect`).
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from os import getpid as process_id
from socket import MSG_PEEK, SHUT_RD, SOCK_STREAM
from socket import gaierror as UnknownHost
from socket import gethostname as host_name
from socket import socket as Socket

__all__ = [
    "MSG_PEEK",
    "SHUT_RD",
    "SOCK_STREAM",
    "Socket",
    "UnknownHost",
    "bind",
    "connect",
    "host_name",
    "ip_text",
    "local_ip",
    "packed_ip",
    "process_id",
    "set_timeout",
    "shut_down",
]


def bind(host: str, port: int, *, shared: bool = False) -> Socket:
    """Returns a non-blocking socket that is bound to the port (0: a free one) but does not listen. Raises OSError.

    With `shared`, several processes can listen on the port, and the kernel distributes connections (SO_REUSEPORT).
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = Socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(host: str, port: int, timeout_s: float) -> Socket:
    """Returns a blocking socket that sends each write at once. Raises OSError."""
    sock = socket.create_connection((host, port), timeout_s)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def set_timeout(sock: Socket, timeout_ms: int) -> None:
    """Limits each receive and send of a blocking socket, which then raises BlockingIOError (TimeoutError on Windows).

    With `Socket.settimeout`, each call would need a second system call. The system takes a timeout of 0 for none, so
    the least timeout is 1 ms.
    """
    timeout_ms = max(timeout_ms, 1)
    if sys.platform == "win32":
        value = struct.pack("@L", timeout_ms)
    else:
        # A `struct timeval`.
        value = struct.pack("@ll", timeout_ms // 1000, timeout_ms % 1000 * 1000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def shut_down(sock: Socket) -> None:
    """Ends the calls of all threads that wait for this socket."""
    with suppress(OSError):  # The peer has closed it.
        sock.shutdown(socket.SHUT_RDWR)


def address_of(host: str) -> str:
    """Returns an IP address of a host, preferably IPv4. Raises OSError if it has none."""
    found = socket.getaddrinfo(host, None, type=SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def packed_ip(ip: str) -> bytes:
    """Returns the 4 or 16 bytes of an IP address. Raises OSError if it is invalid."""
    return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)


def ip_text(packed: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def local_ip() -> str:
    """Returns the IPv4 address of the outgoing network interface, or 127.0.0.1 if there is none. Sends no data."""
    with Socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
