"""What a command has to say: tables and lines for people, one JSON document for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import typer

#: Wide enough for any row: what reads a pipe wants one line for each.
_PIPE_WIDTH = 10_000


@dataclass(slots=True, frozen=True)
class Table:
    """Rows under headings. Numbers stand on the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(slots=True, frozen=True)
class Output:
    """`document` is the JSON, made of msgspec structs, dicts and lists; `parts` are shown one below the other."""

    document: Any
    parts: Sequence[Table | str]


#: A column: its heading, or the heading and what turns the value into text.
Column = str | tuple[str, Callable[[Any], str]]


def listing(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], *after: str) -> Output:
    """Output of rows that have the same fields: a JSON list, and a table of the fields in `columns`."""
    return Output(rows, [table(rows, columns), *after])


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> Table:
    """A table of the rows' fields in `columns`."""
    plain = {field: (column, None) if isinstance(column, str) else column for field, column in columns.items()}
    return Table(
        [heading for heading, _ in plain.values()],
        [[show(row[field]) if show else row[field] for field, (_, show) in plain.items()] for row in rows],
    )


def settings(values: Mapping[str, str]) -> Table:
    """Keys and values, sorted."""
    return Table(["Key", "Value"], sorted(values.items()))


def human_time(timestamp_ms: int) -> str:
    """Local time, empty for 0 and -1, which stand for never."""
    if timestamp_ms <= 0:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) + f",{timestamp_ms % 1000:03}"


def warn(text: str) -> None:
    """Says on standard error what isn't as it looks."""
    typer.echo(f"gantry: {text}", err=True)


def write(output: Output, *, json: bool) -> None:
    """Prints to standard output."""
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(output.document), indent=2))
        return
    for part in output.parts:
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print_table(part)


def _print_table(table: Table) -> None:
    # With --json nobody waits for rich.
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
