"""`gantry namesrv`, `broker`, `controller` and `proxy` as typer commands, for help, errors and completion."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.server_options import COMMANDS, ServerOptions, server_options

app = new_app()

_EPILOG = "Stops on Ctrl-C or SIGTERM. The files of Apache RocketMQ's own distribution can be used as they are."


def _register(command: str) -> None:
    def run(**values: Any) -> None:
        from gantrymq.cli.servers import run_server

        raise typer.Exit(run_server(command, ServerOptions(**values)))

    parameters = [
        inspect.Parameter(
            option.dest,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.kind is bool else None,
            annotation=Annotated[
                bool if option.kind is bool else option.kind | None,
                typer.Option(*option.flags, metavar=option.metavar, help=option.help),
            ],
        )
        for option in server_options(command)
    ]
    # typer reads the options from the signature and the annotations.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    names = {"help_option_names": ["-h", "--help"]}
    app.command(command, help=COMMANDS[command], epilog=_EPILOG, context_settings=names)(run)


for _command in COMMANDS:
    _register(_command)
