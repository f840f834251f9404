"""Tests that the table of goals has the figures of the results, and that a goal without its cell fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import goals

    return goals


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A directory with two result files."""
    rows = [["sends (not in steady state)", "x", [10, 8, 12]], ["sends", "y", "4.5 (all 3; 1,000)"]]
    run = {"name": "run", "columns": ["", "", "GantryMQ"], "rows": rows}
    (tmp_path / "broker.json").write_text(json.dumps({"runs": [run]}))
    (tmp_path / "scale.json").write_text(json.dumps({"topics": {"rows": [{"x": 50, "send": 9.1888}]}}))
    return tmp_path


def goal(**fields: Any) -> dict[str, Any]:
    known = {"what": "a goal", "most": 10, "result": "broker.json", "run": "run", "row": ["sends", "x"]}
    return known | {"column": "GantryMQ"} | fields


def test_each_goal_finds_its_figure(goals: ModuleType) -> None:
    rows = goals.rows(ROOT / "bench" / "results")
    assert len(rows) == len(goals.goals()) > 25
    for each, row in zip(goals.goals(), rows, strict=True):
        assert ("most" in each) != ("least" in each)
        assert (row[4] == "not measured") == ("result" not in each)


def test_a_figure_of_each_kind(goals: ModuleType, results: Path) -> None:
    assert goals.measured(goal(), results) == [10, 8, 12]
    assert goals.measured(goal(row=["sends", "y"], number=0), results) == 4.5
    assert goals.measured(goal(row=["sends", "y"], number=2), results) == 1000
    assert goals.measured(goal(result="scale.json", run="topics", row=[50], column="send"), results) == 9.19
    assert goals.measured({"what": "a goal", "most": 1}, results) is None


@pytest.mark.parametrize(
    "fields", [{"run": "other"}, {"row": ["pulls"]}, {"row": ["sends", "y"]}, {"column": "Java"}, {"result": "no.json"}]
)
def test_a_goal_without_its_cell_fails(goals: ModuleType, results: Path, fields: dict[str, Any]) -> None:
    with pytest.raises((LookupError, ValueError, OSError)):
        goals.measured(goal(**fields), results)


def test_what_a_row_says(goals: ModuleType) -> None:
    link = "[broker.json](../bench/results/broker.json)"
    assert goals.row(goal(unit="µs"), [12, 8, 13]) == ["a goal (µs)", "at most 10", [12, 8, 13], 1.2, "no", link]
    assert goals.row(goal(), 10)[3:5] == [1, "yes"]
    at_least = {"what": "a rate", "least": 200_000, "result": "broker.json"}
    assert goals.row(at_least, 100_000)[1:5] == ["at least 200,000", 100_000, 0.5, "no"]
    assert goals.row(at_least, 200_000)[4] == "yes"
    assert goals.row(at_least, None)[2:] == ["not measured", None, "not measured", None]
