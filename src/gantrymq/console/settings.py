"""The options of `gantry console`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from gantrymq.client.credentials import Credentials
from gantrymq.errors import ConfigError
from gantrymq.system import tls

DEFAULT_PORT = 8180
#: Kinds of login: none, users of the cluster, or users in a file.
LOGINS = ("none", "cluster", "file")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a console. `name_servers` is HOST:PORT;... `credentials` sign the console's own requests."""

    name_servers: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    credentials: Credentials | None = None
    ssl_context: tls.SSLContext | None = None
    login: str = "none"
    #: File with lines NAME:ROLE:HASH, if `login` is file.
    users_file: Path | None = None
    read_only: bool = False
    #: Certificate and key, PEM, to serve HTTPS.
    certificate: Path | None = None
    key: Path | None = None
    #: Directory of the audit log and the history. Without it, audit lines go to the log of the process, and the history
    #: stays in memory.
    directory: Path | None = None
    #: URL of a Prometheus server that scrapes the brokers. The charts then come from Prometheus, not from the history.
    prometheus: str = ""
    #: Timeout of one request to one server, ms.
    timeout_ms: int = 3000
    #: Age at which tables of topics and groups are queried again, s.
    tables_fresh_s: float = 10.0

    def check(self) -> None:
        """Raises ConfigError if options contradict each other, or if they would allow access without a login."""
        if self.login not in LOGINS:
            raise ConfigError(f"--login {self.login!r}: expected one of {', '.join(LOGINS)}")
        if self.login == "none" and not is_loopback(self.host):
            raise ConfigError(
                f"without a login, everybody who can connect to {self.host} could use the console: add --login cluster "
                "or --login file, or listen on 127.0.0.1"
            )
        if (self.login == "file") != (self.users_file is not None):
            raise ConfigError("--login file needs --users FILE, and --users FILE needs --login file")
        if self.prometheus and not self.prometheus.startswith(("http://", "https://")):
            raise ConfigError(f"--prometheus {self.prometheus!r}: expected http://HOST:PORT or https://HOST:PORT")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--cert needs --key, and --key needs --cert")

    @property
    def is_https(self) -> bool:
        return self.certificate is not None


def is_loopback(host: str) -> bool:
    """Returns True if only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
