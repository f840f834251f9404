"""Tests that docs/measurements.md has the data of bench/results, and only these."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "bench" / "results"


@pytest.fixture(scope="module", autouse=True)
def tool() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import measurements  # noqa: F401
    finally:
        sys.path.pop(0)


def test_the_page_equals_the_data() -> None:
    import measurements

    text = measurements.PAGE.read_text(encoding="utf-8")
    assert text == measurements.page(), "python tools/measurements.py renders the page"


def test_each_result_is_on_the_page() -> None:
    import measurements

    assert sorted(section.file for section in measurements.SECTIONS) == sorted(p.name for p in RESULTS.glob("*.json"))


def test_each_fault_is_on_the_page() -> None:
    import measurements

    rounds = json.loads((RESULTS / "failover.json").read_text(encoding="utf-8"))["rounds"]
    assert {each["fault"] for each in rounds} == measurements.FAULTS.keys()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_where_it_comes_from(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    if path.stem == "scale":
        assert all(each["date"] and each["conditions"] for each in result.values())
        return
    runs = result.get("runs")
    for run in runs if isinstance(runs, list) else [{}]:
        assert (run.get("program") or result["program"]).startswith(("bench/", "./dev "))
    for run in runs if isinstance(runs, list) else []:
        assert {"machine", "versions", "native", "date", "commit"} <= (result | run).keys()
        assert all(len(row) == len(run["columns"]) for row in run["rows"])


def test_what_a_cell_shows() -> None:
    import measurements

    assert [measurements.cell(value) for value in (None, 34941, 0.0956, "x", [3.0, 2.5, 1000])] == [
        "",
        "34,941",
        "0.0956",
        "x",
        "3 (2.5 to 1,000)",
    ]
    run = {"name": "a", "versions": {"python": None}, "date": None}
    assert measurements.conditions(run) == ["a", *["not recorded"] * 7]
