"""The cluster of a command (`find_target`), with the settings for connections to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from gantrymq.client.credentials import Credentials

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster of a command.

    Attributes:
        name_servers: The addresses of its NameServers.
        tls_config: The file with TLS settings; None without TLS.
        acl_config: The file with access keys; None if no option or context has one.
        origin: The option, variable or context that selected the cluster.
    """

    name_servers: str
    tls_config: Path | None
    acl_config: Path | None
    origin: str

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for connections; None without TLS. Raises ConfigError."""
        return tls_context(self.tls_config)

    @property
    def credentials(self) -> Credentials | None:
        """The keys that sign requests; None if the cluster has no access control. Raises ConfigError."""
        return read_credentials(self.acl_config)


def find_target(
    name_servers: str | None = None,
    context: str | None = None,
    tls_config: Path | None = None,
    acl_config: Path | None = None,
    *,
    checks_addresses: bool = True,
) -> Target:
    """Selects the cluster of a command from its options, the environment and the contexts. Raises ConfigError.

    With `checks_addresses`, an address must be HOST:PORT. Otherwise the error names the origin of the address.

    If NAMESRV_ADDR or -n gives the address, the command does not use the keys and certificates of the current context.
    If --context names a context, the command uses that context's keys and certificates, even together with -n.
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
    addresses = chosen.namesrv_addr if name_servers is None else name_servers
    if checks_addresses:
        _check_addresses(addresses, origin)
    return Target(
        addresses,
        tls_config or _path(chosen.tls_config),
        acl_config or _path(chosen.acl_config),
        origin,
    )


def _check_addresses(addresses: str, origin: str) -> None:
    from gantrymq.errors import ConfigError
    from gantrymq.remoting.address import parse_address
    from gantrymq.remoting.name_server_discovery import is_discovery_url, split_addresses

    if is_discovery_url(addresses):
        return
    split = split_addresses(addresses)
    if not split:
        raise ConfigError(f"{origin}: no NameServer given, HOST:PORT is needed")
    for address in split:
        try:
            parse_address(address)
        except ValueError:
            raise ConfigError(
                f"{origin}: {address!r} is not HOST:PORT; a NameServer listens on port 9876 by default"
            ) from None


def named_context(name_servers: str | None, context: str | None) -> str | None:
    """Returns the context of --context or, without an address, of GANTRY_CONTEXT; None without a context."""
    return context or (os.environ.get("GANTRY_CONTEXT") if name_servers is None else None) or None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def tls_context(path: Path | None) -> ssl.SSLContext | None:
    """Returns the TLS context of a file, even without tls.enable=true in it; None without a file.

    Raises ConfigError.
    """
    if path is None:
        return None
    from gantrymq.contexts import tls_of
    from gantrymq.remoting.tls import client_context

    return client_context(tls_of(path))


def read_credentials(path: Path | None) -> Credentials | None:
    """Returns the keys in `path`, or in mqadmin's default file; None if there is no file. Raises ConfigError."""
    home = os.environ.get("ROCKETMQ_HOME")
    if path is None and home:
        path = Path(home) / "conf" / "tools.yml"
        path = path if path.exists() else None
    if path is None:
        return None
    from gantrymq.client.credentials import Credentials

    return Credentials.from_file(path)
