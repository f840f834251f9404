"""Addresses as RocketMQ writes them: host:port."""

from __future__ import annotations


def format_address(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(bind_address: str, port: int) -> str:
    """host:port for clients on the machine of a server that listens there."""
    return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind_address, bind_address), port)


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of host:port. Raises ValueError."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
