"""ServerTls: the certificate of a server that runs.

The files may be replaced while it runs: connections made later get the new certificate. Without a certificate the
server makes one itself when the first client wants TLS, as Java's test mode does (`tls.test.mode.enable`). Java does so
whatever else is configured; here a certificate, `enforcing` and the check of clients count.
Source: remoting/netty/TlsHelper (buildSslContext), srvutil/FileWatchService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.errors import ConfigError, GantryError
from gantrymq.logs import peer_log
from gantrymq.remoting.tls import ClientAuth, TlsConfig, TlsMode, server_context
from gantrymq.system import files, tls

log = peer_log(__name__)

#: How often the files are looked at for a change, s.
WATCH_INTERVAL_S = 5.0


class ServerTls:
    """Of one server; `context` is that of a new connection, `job` is known under the name of the `peers`.

    `alpn` are the protocols that clients may ask for (RFC 7301).
    """

    def __init__(self, config: TlsConfig, jobs: Jobs, *, peers: str = "connections", alpn: Sequence[str] = ()) -> None:
        self._config = config
        self._alpn = alpn
        #: None: there is no TLS, or it is made when somebody wants it.
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
        """Connections may be TLS."""
        config = self._config
        return self._context is not None or (
            config.tls_test_mode_enable
            and config.tls_server_mode is TlsMode.PERMISSIVE
            and config.tls_server_need_client_auth is ClientAuth.NONE
        )

    @property
    def is_enforced(self) -> bool:
        """Plain connections aren't taken."""
        return self._config.tls_server_mode is TlsMode.ENFORCING

    def start(self) -> None:
        """Looks at the files now and then, if there are any."""
        if self._versions and self._config.tls_server_mode is not TlsMode.DISABLED:
            self.job.start()

    def stop(self) -> None:
        self.job.cancel()

    async def context(self) -> tls.SSLContext | None:
        """What a new connection is made with; None when there is no certificate after all."""
        if self._context is None:
            # Who comes meanwhile waits for the same one.
            async with self._making:
                await self._make()
        return self._context

    async def _make(self) -> None:
        if self._context is not None or self._cannot_be_made:
            return
        try:
            # Not in the loop: it takes some milliseconds, and more when a program is started for it.
            self._context = self._speaking(await asyncio.to_thread(_self_made_context))
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
            # A new one, not the old one changed: between a new certificate and its key the old pair goes on.
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
    # Most servers never need it.
    from gantrymq.system.self_made_certificate import self_made_context

    return self_made_context()


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = files.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
