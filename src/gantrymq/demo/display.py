"""Shows the progress of the demo, and a table of its results."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gantrymq.demo.check import Comparison
from gantrymq.demo.flights import FIGURES

if TYPE_CHECKING:
    import pandas as pd

SENT, READ, COLLECTED = "flights sent", "flights through Spark", "results read back"


class Display:
    """Shows progress bars on a terminal, and notes on any output. It is a context manager."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._progress = Progress(
            TextColumn("{task.description:>22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=not self.console.is_terminal,
        )
        self._tasks = {name: self._progress.add_task(name, total=None, start=False) for name in (SENT, READ, COLLECTED)}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Prints a line above the bars."""
        self.console.print(text, soft_wrap=True)

    def update(self, name: str, completed: int, total: int) -> None:
        """Updates the bar `name`. Its clock runs from the first call until the bar is complete."""
        task = self._tasks[name]
        self._progress.start_task(task)
        self._progress.update(task, completed=completed, total=total)

    def results(self, figures: pd.DataFrame, airlines: dict[str, str], comparisons: Sequence[Comparison]) -> None:
        """Prints a table by airline, and the outcome of the comparisons with the source."""
        by_carrier = figures.groupby("carrier")[list(FIGURES)].sum().sort_values("flights", ascending=False)
        table = Table(title="Flights from New York, 2013")
        table.add_column("airline", no_wrap=True)
        for heading in ("flights", "cancelled", "mean departure delay", "mean arrival delay"):
            table.add_column(heading, justify="right")
        for carrier, row in by_carrier.iterrows():
            table.add_row(airlines[str(carrier)], *_cells(row))
        table.add_section()
        table.add_row("all", *_cells(by_carrier.sum()))
        self.console.print(table)
        for comparison in comparisons:
            if comparison.is_equal:
                self.console.print(f"{comparison.result}: all {comparison.figures:,} figures equal the source's")
            else:
                self.console.print(
                    f"{comparison.result}: [bold red]{comparison.wrong:,} of {comparison.figures:,} figures differ "
                    f"from the source's[/], e.g. {comparison.example}"
                )


def _cells(row: pd.Series) -> list[str]:
    def mean(total: int, count: int) -> str:
        return f"{total / count:.1f} min" if count else "-"

    return [
        f"{row['flights']:,}",
        f"{row['flights'] - row['departed']:,}",
        mean(row["departure_delay"], row["departed"]),
        mean(row["arrival_delay"], row["arrived"]),
    ]
