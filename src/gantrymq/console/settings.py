"""Settings: what `gantry console` was told."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from gantrymq.errors import ConfigError
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls

DEFAULT_PORT = 8180


@dataclass(frozen=True, slots=True)
class Settings:
    """`name_servers` as HOST:PORT;...; `hooks` sign what the console itself asks."""

    name_servers: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    hooks: Sequence[RpcHook] = ()
    ssl_context: tls.SSLContext | None = None
    #: Of one question to one server, ms.
    timeout_ms: int = 3000
    #: How old may be what is shown of topics and groups, s.
    tables_fresh_s: float = 10.0

    def check(self) -> None:
        """Raises ConfigError for what would let strangers in."""
        if not is_loopback(self.host):
            raise ConfigError(
                f"the console would be open to all who reach {self.host}, without a login: bind it to 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
