"""Rows of the table that the measurements end in: values of each system in each round, and their ratios."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from systems import Cluster, System

#: What one run gives: value by (name, unit).
Figures = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Measure:
    """A row of the table: what, and each system's value in each round."""

    name: str
    unit: str
    values: dict[str, list[float]]


def alternate(
    clusters: Sequence[Cluster], rounds: int, name: str, run: Callable[[Cluster, int], Figures]
) -> list[Measure]:
    """Each system once a round, in turn: what slows the machine for a while slows both."""
    measures: dict[tuple[str, str], Measure] = {}
    for round_number in range(rounds):
        for cluster in clusters:
            system = cluster.system.name
            figures = run(cluster, round_number)
            for (what, unit), value in figures.items():
                measure = measures.setdefault((what, unit), Measure(f"{name}: {what}", unit, {}))
                measure.values.setdefault(system, []).append(value)
            text = ", ".join(f"{what} {figure(value)} {unit}" for (what, unit), value in figures.items())
            progress(f"{name}, round {round_number + 1}/{rounds}, {system}: {text}")
    return list(measures.values())


def table(systems: Sequence[System], measures: Sequence[Measure]) -> str:
    """Medians, and for two systems the ratio of each round as median (minimum to maximum)."""
    names = [system.name for system in systems]
    rows = [["", *names, *([f"{names[1]} : {names[0]}"] if len(names) == 2 else [])]]
    for measure in measures:
        row = [f"{measure.name} ({measure.unit})"]
        row += [figure(statistics.median(measure.values[name])) for name in names]
        if len(names) == 2:
            pairs = zip(*(measure.values[name] for name in names), strict=True)
            ratios = [ours / theirs for theirs, ours in pairs if theirs]
            row.append(
                f"{figure(statistics.median(ratios))} ({figure(min(ratios))} to {figure(max(ratios))})"
                if ratios
                else ""
            )
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def figure(value: float) -> str:
    """Three significant digits, thousands whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
