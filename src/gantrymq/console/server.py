"""Runs the console until it is told to stop."""

from __future__ import annotations

import asyncio

import uvicorn

from gantrymq.background.event_loop import new_event_loop
from gantrymq.console.app import Console
from gantrymq.console.settings import Settings
from gantrymq.errors import GantryError


def run_console(settings: Settings) -> None:
    """Returns after SIGINT or SIGTERM. Raises ConfigError, or GantryError when the port can't be had."""
    settings.check()
    if settings.directory is not None:
        settings.directory.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings))


class _Server(uvicorn.Server):
    """Says where it is when it is there."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    def _log_started_message(self, listeners: object) -> None:
        scheme = "https" if self._settings.is_https else "http"
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"console of {self._settings.name_servers}: {scheme}://{self._settings.host}:{port}/", flush=True)


async def _serve(settings: Settings) -> None:
    config = uvicorn.Config(
        Console(settings).app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=2,
        limit_concurrency=500,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    server = _Server(config, settings)
    try:
        await server.serve()
    except SystemExit:
        # uvicorn's word for a port that is taken.
        raise GantryError(
            f"port {settings.port} of {settings.host} can't be had: is a console running there?"
        ) from None
