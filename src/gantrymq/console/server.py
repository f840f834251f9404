"""Runs the console: until a signal, or in a thread of another program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import uvicorn

from gantrymq.background.event_loop import new_event_loop
from gantrymq.background.thread import SupervisedThread
from gantrymq.console.app import Console
from gantrymq.console.connections import MAX_CONNECTIONS
from gantrymq.console.http import HttpServer
from gantrymq.console.private_files import make_private_directory
from gantrymq.console.settings import Settings
from gantrymq.errors import ConfigError, GantryError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
#: Timeout of running responses when the server stops, s. A live tail would take 15 minutes.
_GRACE_S = 2
#: Largest number of requests in flight. The server rejects others with status 503.
_MAX_AT_ONCE = 2 * MAX_CONNECTIONS


def run_console(settings: Settings) -> None:
    """Runs the console until SIGINT or SIGTERM. Raises ConfigError, or GantryError if the port is in use."""
    server = _server(settings, lambda address: print(f"console of {settings.name_servers}: {address}", flush=True))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(server.serve())


class ConsoleThread:
    """A context manager that runs a console in a thread. `error` is the exception that ended the console."""

    def __init__(self, settings: Settings) -> None:
        self.address = ""
        self.error: BaseException | None = None
        self._started: Future[str] = Future()
        self._server = _server(settings, self._started.set_result)
        self._thread = SupervisedThread("gantry-console", self._run, self._died)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self._started.result(START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The server checks this flag ten times a second.
        self._server.should_exit = True
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                runner.run(self._server.serve())
            except GantryError as e:
                if self._started.done():
                    raise
                self._started.set_exception(e)

    def _died(self, error: BaseException) -> None:
        self.error = error
        if not self._started.done():
            self._started.set_exception(error)


def _server(settings: Settings, listening: Callable[[str], None]) -> HttpServer:
    settings.check()
    if settings.directory is not None:
        try:
            make_private_directory(settings.directory)
        except OSError as e:
            raise GantryError(f"can't use the directory {settings.directory}: {e.strerror or e}") from e
    config = uvicorn.Config(
        Console(settings).app,
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_MAX_AT_ONCE,
        # On lower levels, uvicorn would log texts that clients sent.
        log_level="error",
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        # Without a password, an encrypted key would make OpenSSL prompt for one.
        ssl_keyfile_password="-",
    )
    try:
        config.load()
    except OSError as e:
        raise ConfigError(
            f"can't use the certificate {settings.certificate} with the key {settings.key}: {e.strerror or e}. Both "
            "must be PEM files that belong together, and the key must not be encrypted"
        ) from e
    return HttpServer(config, settings.host, settings.port, listening)
