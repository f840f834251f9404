"""Typer applications of `gantry`, with plain help texts, and `LazyGroup`, which imports a command when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Lazy(NamedTuple):
    """A command that is not imported until it is run.

    Attributes:
        module: The module with the command. Its `app` has the command by name, or as its only command.
        help: The line in lists of commands.
        hidden: If true, lists don't have the command.
        panel: Heading of the command in lists; None for the common one.
    """

    module: str
    help: str
    hidden: bool = False
    panel: str | None = None


def load(module: str, name: str) -> Any:
    """Imports a module, and returns its command `name`."""
    command = typer.main.get_command(import_module(module).app)
    if isinstance(command, TyperGroup) and name in command.commands:
        command = command.commands[name]
    command.name = name
    return command


class PlainGroup(TyperGroup):
    """A group whose help has the whole help text of each command, under headings."""

    def headings(self) -> dict[str, list[tuple[str, str]]]:
        """Returns {heading: [(name of a command, help text)]}."""
        listed = ((name, command) for name, command in self.commands.items() if not command.hidden)
        return {"Commands": [(name, command.get_short_help_str(limit=1000)) for name, command in listed]}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, rows in self.headings().items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def new_app(*, cls: type[TyperGroup] = PlainGroup, **settings: Any) -> typer.Typer:
    """Returns a typer application whose help and errors are plain text, because rich takes long to import.

    Its group has no options for completion: only `gantry` itself has them.
    """
    return typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, **settings)


class LazyGroup(PlainGroup):
    """A group with the commands of `table`, in its order."""

    table: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Placeholders for lists. For a misspelt command, typer also searches them for similar names.
        self.commands = {
            name: TyperCommand(name=name, help=lazy.help, hidden=lazy.hidden, rich_markup_mode=None)
            for name, lazy in self.table.items()
        }
        self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = self.find(cmd_name)
        if name is None:
            return None
        return self.commands[name] if self._is_listing else load(self.table[name].module, name)

    def find(self, name: str) -> str | None:
        """Returns the spelling of `name` in the table, or None. Subclasses support other spellings."""
        return name if name in self.table else None

    def headings(self) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for name, lazy in self.table.items():
            if not lazy.hidden:
                found.setdefault(lazy.panel or "Commands", []).append((name, lazy.help))
        return found

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._is_listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_listing = False
