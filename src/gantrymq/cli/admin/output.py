"""The output of a command: tables and lines of text, or one JSON document."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import typer

#: The width of tables in a pipe, in characters, large enough for one line per row.
_PIPE_WIDTH = 10_000
#: A table of `RowStream` ends when the text of its cells is longer than this, in characters.
_STREAM_TABLE_SIZE = 1024 * 1024


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


@dataclass(slots=True, frozen=True)
class RowStream:
    """The output of a command with more rows than fit into memory. They are printed while they are read.

    Attributes:
        rows: Rows with the same fields.
        columns: The columns of the tables that are printed without --json.
    """

    rows: Iterable[Mapping[str, Any]]
    columns: Mapping[str, Column]


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


def write(output: Output | RowStream, *, json: bool) -> None:
    """Prints the output of a command to standard output, as JSON or as tables and text."""
    if isinstance(output, RowStream):
        (_stream_json if json else _stream_tables)(output)
        return
    if json:
        typer.echo(_formatted(output.document))
        return
    for part in output.parts:
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print_table(part)


def _formatted(document: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _stream_json(stream: RowStream) -> None:
    """Prints the rows as one JSON list, as `listing` does."""
    is_empty = True
    for row in stream.rows:
        # Line feeds within strings are escaped.
        typer.echo(("[" if is_empty else ",") + f"\n{_formatted(row)}".replace("\n", "\n  "), nl=False)
        is_empty = False
    typer.echo("[]" if is_empty else "\n]")


def _stream_tables(stream: RowStream) -> None:
    """Prints the rows as one table, or as several if their text is long."""
    rows: list[Sequence[Any]] = []
    headings, size, is_printed = table([], stream.columns).headings, 0, False
    for row in stream.rows:
        rows += table([row], stream.columns).rows
        size += sum(len(str(cell)) for cell in rows[-1])
        if size > _STREAM_TABLE_SIZE:
            _print_table(Table(headings, rows))
            rows, size, is_printed = [], 0, True
    if rows or not is_printed:
        _print_table(Table(headings, rows))


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
