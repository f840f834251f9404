"""The options --dry-run and --yes of commands that delete or reset."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from gantrymq.cli.admin.output import Output

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what the command would do, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for a confirmation on a terminal.")]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The confirmation of a change that can't be undone.

    Attributes:
        dry_run: If true, the command changes nothing.
        yes: If true, the command does not ask.
    """

    dry_run: bool
    yes: bool

    async def check(self, action: str, places: Sequence[str] = ()) -> Output | None:
        """Returns the output of a dry run. Otherwise asks the user, and returns None after a confirmation.

        Scripts are not asked: without a terminal on standard input, the command runs as mqadmin does. If the user
        does not confirm, raises typer.Abort.

        Args:
            action: The change with the names of its objects, for example `delete topic 'orders'`.
            places: Addresses of the servers that the action changes.
        """
        if places:
            action += f" on {', '.join(places)}"
        if self.dry_run:
            return Output({"dryRun": True, "action": action, "servers": list(places)}, [f"would {action}"])
        if self.yes or not sys.stdin.isatty() or await _confirmed(action):
            return None
        raise typer.Abort


async def _confirmed(action: str) -> bool:
    """Asks on standard error until the answer is yes or no. The end of the input counts as no."""
    while True:
        typer.echo(f"{action}? [y/N]: ", nl=False, err=True)
        answer = (await _typed_line()).strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        typer.echo("Error: invalid input", err=True)


async def _typed_line() -> str:
    """Returns the next line of the terminal. Meanwhile, the event loop handles Ctrl-C and closed connections."""
    terminal = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(terminal, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(terminal)
    return os.read(terminal, 1024).decode(errors="replace")
