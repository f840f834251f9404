"""Settings: what `gantry console` was told."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls

DEFAULT_PORT = 8180
#: How a visitor shows who it is: not at all, with the cluster's own users, or with those of a file.
LOGINS = ("none", "cluster", "file")


@dataclass(frozen=True, slots=True)
class Settings:
    """`name_servers` as HOST:PORT;...; `hooks` sign what the console itself asks."""

    name_servers: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    hooks: Sequence[RpcHook] = ()
    ssl_context: tls.SSLContext | None = None
    login: str = "none"
    #: NAME:ROLE:HASH lines, for `login` file.
    users_file: Path | None = None
    read_only: bool = False
    #: Certificate and key, PEM, to serve HTTPS.
    certificate: Path | None = None
    key: Path | None = None
    #: Where the audit log and the history are kept; without it the history is in memory, the audit in the log.
    directory: Path | None = None
    #: The URL of a Prometheus that asks the brokers: charts come from there, and no figures are kept here.
    prometheus: str = ""
    #: Of one question to one server, ms.
    timeout_ms: int = 3000
    #: How old may be what is shown of topics and groups, s.
    tables_fresh_s: float = 10.0

    def check(self) -> None:
        """Raises ConfigError for what contradicts itself, or would let strangers in."""
        if self.login not in LOGINS:
            raise ConfigError(f"login={self.login!r}: one of {', '.join(LOGINS)}")
        if self.login == "none" and not is_loopback(self.host):
            raise ConfigError(
                f"the console would be open to all who reach {self.host}, without a login: bind it to 127.0.0.1, or "
                "take --login cluster or --login file"
            )
        if (self.login == "file") != (self.users_file is not None):
            raise ConfigError("--login file and --users FILE go together")
        if self.prometheus and not self.prometheus.startswith(("http://", "https://")):
            raise ConfigError(f"--prometheus {self.prometheus!r}: http://HOST:PORT is wanted")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a certificate and its key go together")

    @property
    def is_https(self) -> bool:
        return self.certificate is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
