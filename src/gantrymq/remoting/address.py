"""Formats and parses addresses in RocketMQ's form, HOST:PORT."""

from __future__ import annotations


def format_address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(bind_address: str, port: int) -> str:
    """Returns the HOST:PORT at which a client on the same machine reaches a server with this bind address."""
    return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind_address, bind_address), port)


def parse_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT into (host, port). Raises ValueError if the text has another form."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
