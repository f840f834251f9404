"""Rows of the result table: values of each system in each round, and their ratios."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


def table(systems: Sequence[System], measures: Sequence[Measure]) -> str:
    """Returns the table: medians (minimum to maximum) of the values.

    For two systems, it also has the ratio in each round.
    """
    names = [system.name for system in systems]
    rows = [["", *names, *([f"{names[1]} : {names[0]}"] if len(names) == 2 else [])]]
    for measure in measures:
        row = [f"{measure.name} ({measure.unit})"]
        row += [spread(measure.values[name]) for name in names]
        if len(names) == 2:
            pairs = zip(*(measure.values[name] for name in names), strict=True)
            ratios = [ours / theirs for theirs, ours in pairs if theirs]
            row.append(spread(ratios) if ratios else "")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
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


def spread(values: Sequence[float]) -> str:
    return f"{figure(statistics.median(values))} ({figure(min(values))} to {figure(max(values))})"


def figure(value: float) -> str:
    """Returns three significant digits, or an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
