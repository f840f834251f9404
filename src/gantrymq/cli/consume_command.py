"""`gantry consume` as a typer command, for help, errors and completion."""

from __future__ import annotations

from typing import Any

from gantrymq.cli import consume
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import register

app = new_app()


def _run(**values: Any) -> None:
    consume.run(consume.ConsumeOptions(**values))


register(app, "consume", consume.OPTIONS, _run, help=consume.HELP)
