"""Runs the console: until it is told to stop, or beside something else in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gantrymq.background.event_loop import new_event_loop
from gantrymq.background.thread import SupervisedThread
from gantrymq.console.app import Console
from gantrymq.console.settings import Settings
from gantrymq.errors import GantryError
from gantrymq.system.network import Socket, bind

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
#: What is under way has so long at the end, s; a live tail would go on for a quarter of an hour.
_GRACE_S = 2
#: Connections; on top of them that one is closed which has been quiet for longest. Requests under way; who comes on top
#: of them is told to come later.
MAX_CONNECTIONS = 500
_MAX_AT_ONCE = 2 * MAX_CONNECTIONS


def run_console(settings: Settings) -> None:
    """Returns after SIGINT or SIGTERM. Raises ConfigError, or GantryError when the port can't be had."""
    server = _server(settings, lambda address: print(f"console of {settings.name_servers}: {address}", flush=True))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(server, settings))


class ConsoleThread:
    """A console in a thread of this process; a context manager. `address` is its URL, `error` what it died of."""

    def __init__(self, settings: Settings) -> None:
        self.address = ""
        self.error: BaseException | None = None
        self._settings = settings
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
        # The server looks at it ten times a second.
        self._server.should_exit = True
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                runner.run(_serve(self._server, self._settings))
            except GantryError as e:
                if self._started.done():
                    raise
                self._started.set_exception(e)

    def _died(self, error: BaseException) -> None:
        self.error = error
        if not self._started.done():
            self._started.set_exception(error)


class _Server(uvicorn.Server):
    """Tells `listening` its URL when it is there."""

    def __init__(self, config: uvicorn.Config, scheme: str, listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._scheme = scheme
        self._listening = listening

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._listening(f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}/")


def _protocol() -> type[H11Protocol]:
    """Connections of one server. Nobody is kept out by those that are opened and say nothing, or not all."""
    #: In the order in which they were heard of last.
    heard: dict[H11Protocol, None] = {}

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            heard[self] = None
            if len(heard) > MAX_CONNECTIONS:
                quiet = next((one for one in heard if one.cycle is None or one.cycle.response_complete), self)
                quiet.transport.abort()
                heard.pop(quiet, None)

        def data_received(self, data: bytes) -> None:
            if self in heard:
                del heard[self]
                heard[self] = None
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            heard.pop(self, None)
            super().connection_lost(exc)

    return Connection


def _server(settings: Settings, listening: Callable[[str], None]) -> _Server:
    settings.check()
    if settings.directory is not None:
        settings.directory.mkdir(parents=True, exist_ok=True)
    config = uvicorn.Config(
        Console(settings).app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_MAX_AT_ONCE,
        # What strangers send would be in the log.
        log_level="error",
        http=_protocol(),
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    return _Server(config, "https" if settings.is_https else "http", listening)


async def _serve(server: _Server, settings: Settings) -> None:
    # uvicorn would say it in a line of its own, and end the process.
    try:
        sock = bind(settings.host, settings.port)
    except OSError as e:
        raise GantryError(
            f"port {settings.port} of {settings.host} can't be had: is a console running there? ({e.strerror or e})"
        ) from e
    with sock:
        await server.serve([sock])
