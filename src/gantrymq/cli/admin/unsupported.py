"""mqadmin's commands that do not exist here. Each one is registered, and prints the reason."""

from __future__ import annotations

from typing import Any

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES

app = new_app()


def _register(name: str, reason: str) -> None:
    def refuse() -> None:
        typer.echo(f"gantry: {name}: {reason}", err=True)
        raise typer.Exit(1)

    # The command accepts any options, so that it always prints the same message.
    settings: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"Not supported: {reason}.", context_settings=settings, hidden=True)(refuse)


for _feature in UNSUPPORTED_FEATURES:
    for _name in _feature.commands:
        _register(_name, _feature.text)
