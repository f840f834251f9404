"""The goals of the benchmarks, with the measured figures of bench/results: a table of docs/measurements.md.

The goals are in tools/goals.toml. A goal that names a result must find its cell there.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GOALS = Path(__file__).parent / "goals.toml"
COLUMNS = ("what", "goal", "measured", "measured : goal", "met", "result file")
#: Part of a row's name that depends on the run.
UNSTEADY = " (not in steady state)"

Json = Mapping[str, Any]
#: A figure, or [median, minimum, maximum].
Figure = float | list[float]


def goals() -> list[Json]:
    """Returns all goals."""
    found: list[Json] = tomllib.loads(GOALS.read_text(encoding="utf-8"))["goal"]
    return found


def rows(results: Path) -> list[list[Any]]:
    """Returns the rows of the table, for the result files in this directory. Raises LookupError for a missing cell."""
    return [row(goal, measured(goal, results)) for goal in goals()]


def row(goal: Json, figure: Figure | None) -> list[Any]:
    """Returns the row of a goal with this figure."""
    at_most = "most" in goal
    limit = goal["most"] if at_most else goal["least"]
    unit = f" ({goal['unit']})" if "unit" in goal else ""
    first = [goal["what"] + unit, f"at {'most' if at_most else 'least'} {limit:,}"]
    if figure is None:
        return [*first, "not measured", None, "not measured", None]
    median = figure[0] if isinstance(figure, list) else figure
    met = median <= limit if at_most else median >= limit
    ratio = float(f"{median / limit:.3g}")
    return [*first, figure, ratio, "yes" if met else "no", f"[{goal['result']}](../bench/results/{goal['result']})"]


def measured(goal: Json, results: Path) -> Figure | None:
    """Returns the figure of a goal, or None if the goal names no result. Raises LookupError for a missing cell."""
    if "result" not in goal:
        return None
    result = json.loads((results / goal["result"]).read_text(encoding="utf-8"))
    if goal["result"] == "scale.json":
        (x,) = goal["row"]
        value = next((each[goal["column"]] for each in result[goal["run"]]["rows"] if each["x"] == x), None)
        if value is None:
            raise LookupError(f"{goal['what']}: scale.json has no {goal['run']} with {x}")
        return float(f"{value:.3g}")
    run = next((each for each in result["runs"] if each["name"] == goal["run"]), None)
    if run is None:
        raise LookupError(f"{goal['what']}: {goal['result']} has no run {goal['run']!r}")
    figure = _figure(run, goal["row"], goal)
    if "divided_by" in goal:
        figure, divisor = (
            each[0] if isinstance(each, list) else each for each in (figure, _figure(run, goal["divided_by"], goal))
        )
        return float(f"{figure / divisor:.2g}")
    return figure


def _figure(run: Json, names: Sequence[str], goal: Json) -> Figure:
    """Returns the figure of the row that begins with these cells."""
    for cells in run["rows"]:
        if [str(cell).replace(UNSTEADY, "") for cell in cells[: len(names)]] == names:
            value: Any = cells[run["columns"].index(goal["column"])]
            break
    else:
        raise LookupError(f"{goal['what']}: {goal['result']} has no row {', '.join(names)}")
    if "number" in goal:
        figure = float(re.findall(r"\d[\d,]*(?:\.\d+)?", value)[goal["number"]].replace(",", ""))
        return int(figure) if figure.is_integer() else figure
    if not isinstance(value, int | float | list):
        raise LookupError(f"{goal['what']}: {value!r} is not a figure")
    return value
