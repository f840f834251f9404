"""`gantry namesrv`, `broker`, `controller` and `proxy` as typer commands, for help, errors and completion."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import register
from gantrymq.cli.server_options import COMMANDS, ServerOptions, server_options

app = new_app()

_EPILOG = "Stops on Ctrl-C or SIGTERM. The files of Apache RocketMQ's own distribution can be used as they are."


def _run(command: str, **values: Any) -> None:
    from gantrymq.cli.servers import run_server

    raise typer.Exit(run_server(command, ServerOptions(**values)))


for _command in COMMANDS:
    register(
        app,
        _command,
        server_options(_command),
        partial(_run, _command),
        help=COMMANDS[_command],
        epilog=_EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
