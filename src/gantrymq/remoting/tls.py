"""TLS of servers and clients: which files, which mode, and telling TLS from plain connections on one port.

A server with a certificate looks at the first byte of each connection before anything reads it: 0x16 begins a TLS
handshake, and no frame. The certificate may be replaced while the server runs: connections made later get the new one.
Source: remoting/netty/TlsSystemConfig, TlsHelper, NettyRemotingServer (TlsModeHandler), srvutil/FileWatchService.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NoReturn, cast

from gantrymq.errors import ConfigError
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection

log = logging.getLogger(__name__)

#: How often the files are looked at for a change, s.
WATCH_INTERVAL_S = 5.0
#: A handshake that takes longer is given up; netty's default.
HANDSHAKE_TIMEOUT_S = 10.0

#: The content type of a handshake, first byte of a TLS connection (RFC 8446, 5.1).
_HANDSHAKE = b"\x16"


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

    A server without a certificate serves plain connections only. `tls_enable` is for the connections that a process
    makes itself: a broker's to the NameServers, a client's to all.
    """

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
    #: Whether a server's certificate is checked. As in Java it isn't by default, and its name never is.
    tls_client_auth_server: bool = field(default=False, metadata={"key": "tls.client.authServer"})


def server_context(config: TlsConfig) -> ssl.SSLContext | None:
    """What the server's TLS connections are made with; None when it has none. Raises ConfigError."""
    if config.tls_server_mode is TlsMode.DISABLED:
        return None
    if config.tls_server_cert_path is None:
        if config.tls_server_mode is TlsMode.ENFORCING:
            raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, "tls.server", config.tls_server_cert_path, config.tls_server_key_path)
    if config.tls_server_need_client_auth is not ClientAuth.NONE:
        if config.tls_server_trust_cert_path is None:
            raise ConfigError(
                f"tls.server.need.client.auth={config.tls_server_need_client_auth.value} needs tls.server.trustCertPath"
            )
        _load_trusted(context, "tls.server", config.tls_server_trust_cert_path)
        is_optional = config.tls_server_need_client_auth is ClientAuth.OPTIONAL
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext | None:
    """What a RemotingClient connects with; None unless `tls_enable`. Raises ConfigError."""
    if not config.tls_enable:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if not config.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path is not None:
        _load_trusted(context, "tls.client", config.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if config.tls_client_cert_path is not None:
        _load_certificate(context, "tls.client", config.tls_client_cert_path, config.tls_client_key_path)
    return context


def _load_certificate(context: ssl.SSLContext, prefix: str, cert_path: Path, key_path: Path | None) -> None:
    named = f"{prefix}.certPath={cert_path}, {prefix}.keyPath={key_path or '(in certPath)'}"

    def refuse() -> NoReturn:
        # Else OpenSSL asks for the password at the terminal.
        raise ConfigError(f"{named}: the key is encrypted; give one that is not, readable by the server alone")

    try:
        context.load_cert_chain(cert_path, key_path, password=refuse)
    except OSError as e:
        # ssl.SSLError is an OSError.
        raise ConfigError(f"{named}: {e.strerror or e}") from e


def _load_trusted(context: ssl.SSLContext, prefix: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as e:
        raise ConfigError(f"{prefix}.trustCertPath={path}: {e.strerror or e}") from e


class ServerTls:
    """The TLS side of a listening socket: `start` watches the files, `accept` gives create_server its protocols."""

    def __init__(self, config: TlsConfig, context: ssl.SSLContext, *, max_idle_s: float) -> None:
        self._config = config
        self._context = context
        self._max_idle_s = max_idle_s
        self._loop = asyncio.get_running_loop()
        self._versions = self._file_versions()
        self._watch_timer: asyncio.TimerHandle | None = None
        #: Connections of which no byte has come, each with the timer that ends its time.
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._beginning: set[asyncio.Task[None]] = set()

    @classmethod
    def create(cls, config: TlsConfig, *, max_idle_s: float) -> ServerTls | None:
        """None when the server has no TLS. A connection may be silent for `max_idle_s`. Raises ConfigError."""
        context = server_context(config)
        return cls(config, context, max_idle_s=max_idle_s) if context is not None else None

    def start(self) -> None:
        self._watch_timer = self._loop.call_later(WATCH_INTERVAL_S, self._watch)

    def stop(self) -> None:
        """Closes the connections that have not begun."""
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None
        for sock in list(self._silent):
            self._forget(sock)
            sock.close()
        for task in self._beginning:
            task.cancel()

    def accept(self, connected: Callable[[], Connection]) -> asyncio.Protocol:
        """The protocol of a new connection; `connected` makes the one that follows when its kind is known."""
        return _Arrival(lambda sock: self._arrived(sock, connected))

    # -- the first byte -----------------------------------------------------------------------------------------

    def _arrived(self, sock: socket.socket, connected: Callable[[], Connection]) -> None:
        self._loop.add_reader(sock, self._first_byte, sock, connected)
        self._silent[sock] = self._loop.call_later(self._max_idle_s, self._drop, sock)

    def _first_byte(self, sock: socket.socket, connected: Callable[[], Connection]) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        is_tls = first == _HANDSHAKE
        if not first or (not is_tls and self._config.tls_server_mode is TlsMode.ENFORCING):
            if first:
                log.warning("closing the connection with %s: it is not TLS, which this server demands", _peer(sock))
            self._drop(sock)
            return
        self._forget(sock)
        task = self._loop.create_task(self._begin(sock, connected, self._context if is_tls else None))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(
        self, sock: socket.socket, connected: Callable[[], Connection], context: ssl.SSLContext | None
    ) -> None:
        peer = _peer(sock)
        timeout = HANDSHAKE_TIMEOUT_S if context is not None else None
        try:
            await self._loop.connect_accepted_socket(connected, sock, ssl=context, ssl_handshake_timeout=timeout)
        except OSError as e:
            # Errors of ssl and TimeoutError are OSErrors. The loop has closed the socket.
            log.info("the TLS handshake with %s failed: %s", peer, e)

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()

    def _forget(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._silent.pop(sock).cancel()

    # -- files that change --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._watch_timer = self._loop.call_later(WATCH_INTERVAL_S, self._watch)
        versions = self._file_versions()
        if versions == self._versions:
            return
        self._versions = versions
        try:
            # A new one, not the old one changed: between a new certificate and its key the old pair goes on.
            context = server_context(self._config)
        except ConfigError as e:
            log.warning("the TLS files have changed but can't be used, the former certificate stays: %s", e)
            return
        assert context is not None
        self._context = context
        log.info("new connections use the changed TLS files")

    def _file_versions(self) -> list[tuple[int, int, int] | None]:
        config = self._config
        paths = (config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path)
        return [_file_version(path) for path in paths if path is not None]


class _Arrival(asyncio.Protocol):
    """Takes the socket from an accepted connection's transport, which would read the first byte away."""

    def __init__(self, arrived: Callable[[socket.socket], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as e:
            log.warning("closing a new connection: %s", e)
        else:
            sock.setblocking(False)
            self._arrived(sock)
        finally:
            # Closes the file descriptor of the transport, not the connection.
            cast(asyncio.Transport, transport).abort()


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _peer(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "?"
    return format_address(host, port)
