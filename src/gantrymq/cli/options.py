"""Options that several commands share."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gantrymq.client.acl_hook import AclHook

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

NameServers = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        metavar="HOST:PORT;...",
        help="The NameServers.",
        show_default="the context's, else NAMESRV_ADDR, else the current context's, else 127.0.0.1:9876",
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="A cluster of gantry context list; else GANTRY_CONTEXT."),
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


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command goes to, and the files with what it takes to reach it; `origin` says who named it."""

    name_servers: str
    tls_config: Path | None
    acl_config: Path | None
    origin: str

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What to connect with; None without TLS. Raises ConfigError."""
        return tls_context(self.tls_config)

    @property
    def hooks(self) -> list[AclHook]:
        """What signs the requests. Raises ConfigError."""
        return acl_hooks(self.acl_config)

    @property
    def keys(self) -> tuple[str, str] | None:
        """Access key and secret key, for who signs otherwise than requests are. Raises ConfigError."""
        return acl_keys(self.acl_config)


def find_target(
    name_servers: str | None = None,
    context: str | None = None,
    tls_config: Path | None = None,
    acl_config: Path | None = None,
) -> Target:
    """Where a command goes, by its options, the environment and the contexts. Raises ConfigError.

    The keys and certificates of a context go to its own cluster, or where `context` is named beside an address: those
    of the current one are not for whatever NAMESRV_ADDR or -n says.
    """
    from gantrymq.contexts import Context, Contexts

    named = named_context(name_servers, context)
    environment = os.environ.get("NAMESRV_ADDR")
    chosen = Context(DEFAULT_NAME_SERVER)
    origin = f"neither -n, nor NAMESRV_ADDR, nor a context: {DEFAULT_NAME_SERVER}"
    if named:
        chosen, origin = Contexts()[named], f"context {named}"
    elif name_servers is not None:
        origin = "-n"
    elif environment:
        chosen, origin = Context(environment), "NAMESRV_ADDR"
    else:
        contexts = Contexts()
        if contexts.current is not None:
            chosen, origin = contexts[contexts.current], f"the current context, {contexts.current}"
    return Target(
        chosen.namesrv_addr if name_servers is None else name_servers,
        tls_config or _path(chosen.tls_config),
        acl_config or _path(chosen.acl_config),
        origin,
    )


def named_context(name_servers: str | None, context: str | None) -> str | None:
    """The context that --context names, or where no address is given GANTRY_CONTEXT."""
    return context or (os.environ.get("GANTRY_CONTEXT") if name_servers is None else None) or None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def tls_context(path: Path | None) -> ssl.SSLContext | None:
    """What to connect with; None without a file, which need not say tls.enable=true. Raises ConfigError."""
    if path is None:
        return None
    from gantrymq.contexts import tls_of
    from gantrymq.remoting.tls import client_context

    return client_context(tls_of(path))


def acl_keys(path: Path | None) -> tuple[str, str] | None:
    """The keys in `path`, or where mqadmin looks for them. Raises ConfigError."""
    home = os.environ.get("ROCKETMQ_HOME")
    if path is None and home:
        path = Path(home) / "conf" / "tools.yml"
        path = path if path.exists() else None
    if path is None:
        return None
    from gantrymq.client.acl_hook import read_keys

    return read_keys(path)


def acl_hooks(path: Path | None) -> list[AclHook]:
    """What signs requests with these keys. Raises ConfigError."""
    keys = acl_keys(path)
    if keys is None:
        return []
    from gantrymq.client.acl_hook import AclHook

    return [AclHook(*keys)]


def unescape(text: str) -> bytes:
    r"""The bytes of an option in which \n, \t, \0 and \x1e mean what they mean in Python. Raises ValueError."""
    return text.encode().decode("unicode_escape").encode("latin-1")
