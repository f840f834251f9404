"""TLS of servers and clients: which files, which mode, who is checked.

What a server does with it is in `server_tls` (its certificate) and `arrivals` (which connections are TLS).
Source: remoting/netty/TlsSystemConfig, TlsHelper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NoReturn

from gantrymq.errors import ConfigError
from gantrymq.system import tls


class TlsMode(Enum):
    """Whether a server takes TLS connections, plain ones, or both (`TlsMode`)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients show a certificate. One that is shown is always checked, which Java does only if told to."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass
class TlsConfig:
    """What both kinds of server configuration inherit. Files are PEM; keys must not be encrypted.

    `tls_enable` is for the connections that a process makes itself: a broker's to the NameServers, a client's to all.
    """

    #: A server without a certificate makes one when the first client wants TLS (see `server_tls.py`).
    tls_test_mode_enable: bool = field(default=True, metadata={"key": "tls.test.mode.enable"})
    tls_server_mode: TlsMode = field(default=TlsMode.PERMISSIVE, metadata={"key": "tls.server.mode"})
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.certPath"})
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tls.server.keyPath"})
    #: Who signs the clients' certificates.
    tls_server_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.trustCertPath"})
    tls_server_need_client_auth: ClientAuth = field(
        default=ClientAuth.NONE, metadata={"key": "tls.server.need.client.auth"}
    )
    tls_enable: bool = field(default=False, metadata={"key": "tls.enable"})
    tls_client_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.certPath"})
    tls_client_key_path: Path | None = field(default=None, metadata={"key": "tls.client.keyPath"})
    #: Who signs the servers' certificates; the system's authorities without it.
    tls_client_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.trustCertPath"})
    #: Whether a server's certificate is checked; as in Java it isn't by default.
    tls_client_auth_server: bool = field(default=False, metadata={"key": "tls.client.authServer"})
    #: Whether it must also name the host, or the address, that was connected to; Java never looks.
    tls_client_check_server_name: bool = field(default=True, metadata={"key": "tls.client.checkServerName"})


def server_context(config: TlsConfig) -> tls.SSLContext | None:
    """What a server's TLS connections are made with; None when it has no certificate, or no TLS. Raises ConfigError."""
    if config.tls_server_mode is TlsMode.DISABLED:
        return None
    if config.tls_server_cert_path is None:
        if config.tls_server_mode is TlsMode.ENFORCING:
            raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
        return None
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    _load_certificate(context, "tls.server", config.tls_server_cert_path, config.tls_server_key_path)
    if config.tls_server_need_client_auth is not ClientAuth.NONE:
        if config.tls_server_trust_cert_path is None:
            raise ConfigError(
                f"tls.server.need.client.auth={config.tls_server_need_client_auth.value} needs tls.server.trustCertPath"
            )
        _load_trusted(context, "tls.server", config.tls_server_trust_cert_path)
        is_optional = config.tls_server_need_client_auth is ClientAuth.OPTIONAL
        context.verify_mode = tls.CERT_OPTIONAL if is_optional else tls.CERT_REQUIRED
    return context


def client_context(config: TlsConfig) -> tls.SSLContext | None:
    """What a RemotingClient connects with; None unless `tls_enable`. Raises ConfigError."""
    if not config.tls_enable:
        return None
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.tls_client_auth_server and config.tls_client_check_server_name
    if not config.tls_client_auth_server:
        context.verify_mode = tls.CERT_NONE
    elif config.tls_client_trust_cert_path is not None:
        _load_trusted(context, "tls.client", config.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if config.tls_client_cert_path is not None:
        _load_certificate(context, "tls.client", config.tls_client_cert_path, config.tls_client_key_path)
    return context


def _load_certificate(context: tls.SSLContext, prefix: str, cert_path: Path, key_path: Path | None) -> None:
    named = f"{prefix}.certPath={cert_path}, {prefix}.keyPath={key_path or '(in certPath)'}"

    def refuse() -> NoReturn:
        # Else OpenSSL asks for the password at the terminal.
        raise ConfigError(f"{named}: the key is encrypted; give one that is not, readable by the server alone")

    try:
        context.load_cert_chain(cert_path, key_path, password=refuse)
    except OSError as e:
        # tls.SSLError is an OSError.
        raise ConfigError(f"{named}: {e.strerror or e}") from e


def _load_trusted(context: tls.SSLContext, prefix: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as e:
        raise ConfigError(f"{prefix}.trustCertPath={path}: {e.strerror or e}") from e
