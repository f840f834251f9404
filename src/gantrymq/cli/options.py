"""Options that several commands share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated

import typer

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


def tls_context(path: Path | None) -> ssl.SSLContext | None:
    """What to connect with; None without a file, which need not say tls.enable=true. Raises ConfigError."""
    if path is None:
        return None
    from gantrymq.config import from_properties, load_properties
    from gantrymq.remoting.tls import TlsConfig, client_context

    properties = {"tls.enable": "true"} | load_properties(path)
    return client_context(from_properties(TlsConfig, properties, source=str(path)))
