"""LazyGroup: commands that are imported when one of them is run; their list and help come from a table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Lazy(NamedTuple):
    """A command before it is imported: the module whose `app` has it, under this name or alone; the list's line."""

    module: str
    help: str
    hidden: bool = False


def load(module: str, name: str) -> Any:
    """The command `name` of a module."""
    command = typer.main.get_command(import_module(module).app)
    if isinstance(command, TyperGroup) and name in command.commands:
        command = command.commands[name]
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """Its commands are those of `table`, in that order."""

    table: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # What is seen of a command before it is run: here typer looks for names that are spelled alike, too.
        self.commands = {
            name: TyperCommand(name=name, help=lazy.help, hidden=lazy.hidden) for name, lazy in self.table.items()
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
        """The name in the table that `name` stands for."""
        return name if name in self.table else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._is_listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_listing = False
