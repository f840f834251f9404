"""Rows of the result table: values of each system in each round, and their ratios."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systems import Cluster, System

#: Figures of one run, by (name, unit). The first one shows whether a system is warm: in most cases its CPU time.
Figures = Mapping[tuple[str, str], float]

#: A system is warm when this many consecutive rounds differ by less than this share.
_STEADY_ROUNDS = 3
_STEADY_SHARE = 0.05
#: A larger increase of CPU time counts as more expensive.
_MORE_EXPENSIVE_SHARE = 0.03


@dataclass(frozen=True)
class Measure:
    """A row of the table: its name, and the values of each system by round."""

    name: str
    unit: str
    values: dict[str, list[float]]


def alternate(
    clusters: Sequence[Cluster], args: argparse.Namespace, name: str, run: Callable[[Cluster, int], Figures]
) -> list[Measure]:
    """Runs each system once per round, in turn, so that a temporarily slow machine affects both.

    Rounds count from the time when all systems are warm, or after `warm_up_rounds`. In the second case, the row's
    name says that they never were warm.
    """
    warm_up, steady = 0, False
    firsts: dict[str, list[float]] = {cluster.system.name: [] for cluster in clusters}
    while not steady and warm_up < args.warm_up_rounds:
        for system, figures in _round(clusters, run, warm_up, f"{name}, warm-up {warm_up + 1}"):
            firsts[system].append(next(iter(figures.values())))
        warm_up += 1
        steady = all(is_steady(values) for values in firsts.values())
    if not steady:
        name += " (not in steady state)"
    measures: dict[tuple[str, str], Measure] = {}
    for number in range(args.rounds):
        for system, figures in _round(clusters, run, warm_up + number, f"{name}, round {number + 1}/{args.rounds}"):
            for (what, unit), value in figures.items():
                measure = measures.setdefault((what, unit), Measure(f"{name}: {what}", unit, {}))
                measure.values.setdefault(system, []).append(value)
    return list(measures.values())


def _round(
    clusters: Sequence[Cluster], run: Callable[[Cluster, int], Figures], number: int, title: str
) -> Iterator[tuple[str, Figures]]:
    for cluster in clusters:
        figures = run(cluster, number)
        text = ", ".join(f"{what} {figure(value)} {unit}" for (what, unit), value in figures.items())
        progress(f"{title}, {cluster.system.name}: {text}")
        yield cluster.system.name, figures


def is_steady(values: Sequence[float]) -> bool:
    """Returns true if the last rounds differ by less than 5 %."""
    last = values[-_STEADY_ROUNDS:]
    return len(last) == _STEADY_ROUNDS and max(last) < min(last) * (1 + _STEADY_SHARE)


def columns(systems: Sequence[System]) -> list[str]:
    """Returns the head of the table."""
    names = [system.name for system in systems]
    return ["", *names, *([f"{names[1]} : {names[0]}"] if len(names) == 2 else [])]


def rows(systems: Sequence[System], measures: Sequence[Measure]) -> list[list[Any]]:
    """Returns the rows of the table: a name, and [median, minimum, maximum] of each system.

    For two systems, the last cell is the ratio in each round. It is None if all values of the first system are 0.
    """
    names = [system.name for system in systems]
    found: list[list[Any]] = []
    for measure in measures:
        row: list[Any] = [f"{measure.name} ({measure.unit})", *(spread(measure.values[name]) for name in names)]
        if len(names) == 2:
            pairs = zip(*(measure.values[name] for name in names), strict=True)
            ratios = [ours / theirs for theirs, ours in pairs if theirs]
            row.append(spread(ratios) if ratios else None)
        found.append(row)
    return found


def table(systems: Sequence[System], measures: Sequence[Measure]) -> str:
    """Returns the table as Markdown: medians (minimum to maximum) of the values."""
    texts = [columns(systems), *([cell(value) for value in row] for row in rows(systems, measures))]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    texts.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in texts
    )


def more_expensive(systems: Sequence[System], measures: Sequence[Measure]) -> str:
    """Returns the rows in which the second system takes over 3 % more CPU time than the first, as lines of text."""
    before, after = (system.name for system in systems)
    lines = []
    for measure in measures:
        if "CPU" not in measure.name:
            continue
        pairs = zip(measure.values[before], measure.values[after], strict=True)
        ratios = [new / old for old, new in pairs if old]
        if ratios and (ratio := statistics.median(ratios)) > 1 + _MORE_EXPENSIVE_SHARE:
            lines.append(f"more expensive: {measure.name}: {(ratio - 1) * 100:.1f} %")
    return "\n".join(lines) or f"no row takes over {_MORE_EXPENSIVE_SHARE:.0%} more CPU time"


def spread(values: Sequence[float]) -> list[float]:
    """Returns the median, the minimum and the maximum, with six significant digits."""
    return [float(f"{value:.6g}") for value in (statistics.median(values), min(values), max(values))]


def cell(value: str | list[float] | None) -> str:
    """Returns the text of a cell."""
    if isinstance(value, list):
        median, least, most = map(figure, value)
        return f"{median} ({least} to {most})"
    return value or ""


def figure(value: float) -> str:
    """Returns three significant digits, or an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
