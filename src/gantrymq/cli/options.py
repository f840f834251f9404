"""Options that several commands share."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gantrymq.client.acl_hook import AclHook

NameServers = Annotated[
    str,
    typer.Option("-n", "--namesrvAddr", envvar="NAMESRV_ADDR", metavar="HOST:PORT;...", help="The NameServers."),
]
TlsConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--tls-config",
        metavar="FILE",
        dir_okay=False,
        help="Connect with TLS: Java's tls.properties (tls.client.trustCertPath, tls.client.authServer ...).",
    ),
]

AclConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--acl-config",
        metavar="FILE",
        dir_okay=False,
        help="Sign requests: mqadmin's tools.yml (accessKey, secretKey); else $ROCKETMQ_HOME/conf/tools.yml if it is "
        "there.",
    ),
]


def tls_context(path: Path | None) -> ssl.SSLContext | None:
    """What to connect with; None without a file, which need not say tls.enable=true. Raises ConfigError."""
    if path is None:
        return None
    from gantrymq.config import from_properties, load_properties
    from gantrymq.remoting.tls import TlsConfig, client_context

    properties = {"tls.enable": "true"} | load_properties(path)
    return client_context(from_properties(TlsConfig, properties, source=str(path)))


def acl_hooks(path: Path | None) -> list[AclHook]:
    """What signs requests with the keys in `path`, or where mqadmin looks for them. Raises ConfigError."""
    home = os.environ.get("ROCKETMQ_HOME")
    if path is None and home:
        path = Path(home) / "conf" / "tools.yml"
        path = path if path.exists() else None
    if path is None:
        return []
    from gantrymq.client.acl_hook import AclHook

    return [AclHook.from_file(path)]


def unescape(text: str) -> bytes:
    r"""The bytes of an option in which \n, \t, \0 and \x1e mean what they mean in Python. Raises ValueError."""
    return text.encode().decode("unicode_escape").encode("latin-1")
