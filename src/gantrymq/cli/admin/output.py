"""The output of a command: tables and lines of text, or one JSON document."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import typer

#: The width of tables in a pipe, in characters, large enough for one line per row.
_PIPE_WIDTH = 10_000


@dataclass(slots=True, frozen=True)
class Table:
    """A table with headings. Columns of numbers are aligned to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(slots=True, frozen=True)
class Output:
    """The output of a command.

    Attributes:
        document: The JSON document, as msgspec structs, dictionaries and lists.
        parts: Tables and lines of text, in order. They are printed without --json.
    """

    document: Any
    parts: Sequence[Table | str]


#: A column: its heading, or its heading and a function that formats a value.
Column = str | tuple[str, Callable[[Any], str]]


def listing(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], *after: str) -> Output:
    """Returns the output for rows with the same fields: a JSON list, a table of `columns`, and the lines `after`."""
    return Output(rows, [table(rows, columns), *after])


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> Table:
    """Returns a table with the fields in `columns` of each row."""
    plain = {field: (column, None) if isinstance(column, str) else column for field, column in columns.items()}
    return Table(
        [heading for heading, _ in plain.values()],
        [[show(row[field]) if show else row[field] for field, (_, show) in plain.items()] for row in rows],
    )


def settings(values: Mapping[str, str]) -> Table:
    """Returns a table of keys and values, sorted by key."""
    return Table(["Key", "Value"], sorted(values.items()))


def human_time(timestamp_ms: int) -> str:
    """Formats a time as local time. Returns an empty text for 0 and -1, which mean never."""
    if timestamp_ms <= 0:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) + f",{timestamp_ms % 1000:03}"


def warn(text: str) -> None:
    """Prints a warning to standard error."""
    typer.echo(f"gantry: {text}", err=True)


def write(output: Output, *, json: bool) -> None:
    """Prints the output of a command to standard output, as JSON or as tables and text."""
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(output.document), indent=2))
        return
    for part in output.parts:
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print_table(part)


def _print_table(table: Table) -> None:
    # Imported here, so that --json does not wait for the import of rich.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, heading in enumerate(table.headings):
        numbers = bool(table.rows) and all(isinstance(row[number], int | float) for row in table.rows)
        shown.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(f"{cell:.2f}" if isinstance(cell, float) else str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    console.print(shown)
