"""The certificate of a running server.

The files can be replaced while the server runs. New connections then get the new certificate. If no certificate is
configured, the server creates one when the first client uses TLS, as in Java's test mode (`tls.test.mode.enable`).
Java's test mode ignores all other TLS keys. Here a configured certificate, `enforcing` and client authentication apply.
Source: remoting/netty/TlsHelper (buildSslContext), srvutil/FileWatchService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.errors import ConfigError, GantryError
from gantrymq.logs import peer_log
from gantrymq.remoting.tls import ClientAuth, TlsConfig, TlsMode, limit_context, server_context
from gantrymq.system import files, tls

log = peer_log(__name__)

#: Interval of the check for changed files, in seconds.
WATCH_INTERVAL_S = 5.0


class ServerTls:
    """Provides the SSL context for new connections of one server, and reloads changed files.

    Args:
        config: Modes and files.
        jobs: Report for the background job.
        peers: Name of the connections in the background job's name.
        alpn: Protocols that clients may negotiate (RFC 7301).
    """

    def __init__(self, config: TlsConfig, jobs: Jobs, *, peers: str = "connections", alpn: Sequence[str] = ()) -> None:
        self._config = config
        self._alpn = alpn
        #: None if TLS is off, or if the certificate has not been created yet.
        self._context: tls.SSLContext | None = None
        self._making = asyncio.Lock()
        self._cannot_be_made = False
        self._versions: list[tuple[int, int, int] | None] = []
        self.job = jobs.repeating(f"look at the TLS files for {peers}", self._watch, WATCH_INTERVAL_S)

    def load(self) -> None:
        """Reads the files. Raises ConfigError."""
        self._versions = self._file_versions()
        self._context = self._speaking(server_context(self._config))

    @property
    def is_there(self) -> bool:
        """True if the server accepts TLS connections."""
        config = self._config
        return self._context is not None or (
            config.tls_test_mode_enable
            and config.tls_server_mode is TlsMode.PERMISSIVE
            and config.tls_server_need_client_auth is ClientAuth.NONE
        )

    @property
    def is_enforced(self) -> bool:
        """True if the server refuses plain connections."""
        return self._config.tls_server_mode is TlsMode.ENFORCING

    def start(self) -> None:
        """Starts the regular check for changed files, if files are configured."""
        if self._versions and self._config.tls_server_mode is not TlsMode.DISABLED:
            self.job.start()

    def stop(self) -> None:
        self.job.cancel()

    async def context(self) -> tls.SSLContext | None:
        """Returns the SSL context for a new connection. Returns None if no certificate could be created."""
        if self._context is None:
            # Connections that arrive during the creation wait for the same context.
            async with self._making:
                await self._make()
        return self._context

    async def _make(self) -> None:
        if self._context is not None or self._cannot_be_made:
            return
        try:
            # In a thread: it takes some milliseconds, and longer if it runs an external program.
            context = await asyncio.to_thread(_self_made_context)
            limit_context(context, self._config)
            self._context = self._speaking(context)
        except (GantryError, OSError) as e:
            self._cannot_be_made = True
            log.info("a client wants TLS, and there is no certificate (tls.server.certPath): %s", e)
        else:
            log.warning(
                "TLS with a certificate made just now, which proves nothing to clients: set tls.server.certPath, or "
                "tls.test.mode.enable=false for none"
            )

    def _watch(self) -> None:
        versions = self._file_versions()
        if versions == self._versions:
            return
        self._versions = versions
        try:
            # A new context, so that the old pair stays in use if the certificate is replaced before its key.
            context = server_context(self._config)
        except ConfigError as e:
            log.warning("the TLS files have changed but can't be used, the former certificate stays: %s", e)
            return
        assert context is not None
        self._context = self._speaking(context)
        log.info("new connections use the changed TLS files")

    def _speaking(self, context: tls.SSLContext | None) -> tls.SSLContext | None:
        if context is not None and self._alpn:
            context.set_alpn_protocols(list(self._alpn))
        return context

    def _file_versions(self) -> list[tuple[int, int, int] | None]:
        config = self._config
        if config.tls_server_cert_path is None:
            return []
        paths = (config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path)
        return [_file_version(path) for path in paths if path is not None]


def _self_made_context() -> tls.SSLContext:
    # Imported on demand, because most servers never need it.
    from gantrymq.system.self_made_certificate import self_made_context

    return self_made_context()


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = files.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
