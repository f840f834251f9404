"""Options that several commands share, and commands whose options are data (`register`), for typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gantrymq.cli.plain_options import ACL_CONFIG, CONTEXT, NAME_SERVERS, TLS_CONFIG, InvalidOption, PlainOption


def typer_option(option: PlainOption) -> Any:
    """Returns an option, or the arguments of a command, for typer."""
    if not option.flags:
        return typer.Argument(metavar=option.metavar, help=option.help)
    return typer.Option(
        *option.flags,
        metavar=option.metavar,
        help=option.help,
        min=option.minimum,
        dir_okay=option.kind is not Path,
        show_default=option.shown_default or True,
    )


NameServers = Annotated[str | None, typer_option(NAME_SERVERS)]
ContextName = Annotated[str | None, typer_option(CONTEXT)]
TlsConfigFile = Annotated[Path | None, typer_option(TLS_CONFIG)]
AclConfigFile = Annotated[Path | None, typer_option(ACL_CONFIG)]


def _annotation(option: PlainOption) -> Any:
    if not option.flags:
        return list[option.kind]  # type: ignore[name-defined]
    return option.kind if option.kind is bool or option.default is not None else option.kind | None


def register(
    app: typer.Typer, name: str, options: Sequence[PlainOption], run: Callable[..., None], **settings: Any
) -> None:
    """Adds a command whose options are data. It calls `run` with their values. `settings` are passed to typer."""

    def command(**values: Any) -> None:
        try:
            run(**values)
        except InvalidOption as e:
            raise typer.BadParameter(str(e), param_hint=e.hint) from None

    parameters = [
        inspect.Parameter(
            option.dest,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if not option.flags else False if option.kind is bool else option.default,
            annotation=Annotated[_annotation(option), typer_option(option)],
        )
        for option in options
    ]
    # typer reads the options from the signature and the annotations.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, **settings)(command)
