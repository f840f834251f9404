"""Tests that the micro-benchmarks run with the present code, and that comparisons find what became more expensive."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def compare_micro(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import compare_micro

    return compare_micro


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import measures

    return measures


@pytest.mark.parametrize(("program", "rows"), [("client_micro.py", 12), ("micro.py", 7)])
def test_a_micro_benchmark_prints_rows_that_a_comparison_reads(
    compare_micro: ModuleType, program: str, rows: int
) -> None:
    figures = compare_micro.run(sys.executable, BENCH / program, "--repeat", "1")
    assert len(figures) == rows
    assert all(0 < figure < 1e6 for figure in figures.values())


def test_a_row_with_over_3_percent_more_cpu_time_is_more_expensive(measures: ModuleType) -> None:
    from systems import System

    old, new = (System(name, lambda directory: None, lambda *_: None) for name in ("old", "new"))
    dear = measures.Measure("sends: broker CPU", "µs/message", {"old": [10.0, 10.0, 20.0], "new": [10.4, 10.5, 20.0]})
    equal = measures.Measure("reads: broker CPU", "µs/message", {"old": [10.0, 10.0], "new": [10.2, 10.1]})
    rate = measures.Measure("sends: rate", "/s", {"old": [1000.0], "new": [2000.0]})
    assert measures.more_expensive([old, new], [dear, equal, rate]) == "more expensive: sends: broker CPU: 4.0 %"
    unmeasured = measures.Measure("polls: broker CPU", "µs/message", {"old": [0.0, 0.0], "new": [0.0, 1.0]})
    assert measures.more_expensive([old, new], [equal, rate, unmeasured]) == "no row takes over 3% more CPU time"


def test_a_run_in_a_result_file_is_replaced(measures: ModuleType, tmp_path: Path) -> None:
    import result_files
    from systems import System

    systems = [System(name, lambda directory: None, lambda *_: None) for name in ("Java", "GantryMQ")]
    sends = measures.Measure("sends: rate", "/s", {"Java": [100.0, 200.0, 123456.0], "GantryMQ": [300.0, 400.0, 500.0]})
    run = result_files.conditions() | {"program": "bench/run.py", "name": "sends", "options": "--only sends"}
    run |= {"rounds": 3, "columns": measures.columns(systems), "rows": measures.rows(systems, [sends])}
    path = tmp_path / "result.json"
    for name, rounds in (("reads", 1), ("sends", 2), ("sends", 3)):
        result_files.put_run(path, run | {"name": name, "rounds": rounds})
    result = json.loads(path.read_text())
    assert [(each["name"], each["rounds"]) for each in result["runs"]] == [("reads", 1), ("sends", 3)]
    assert result["runs"][1]["columns"] == ["", "Java", "GantryMQ", "GantryMQ : Java"]
    assert result["runs"][1]["rows"] == [["sends: rate (/s)", [200, 100, 123456], [400, 300, 500], [2, 0.00405003, 3]]]
    assert measures.table(systems, [sends]).splitlines()[-1].split(" | ")[1] == "200 (100 to 123,456)"
    assert result["runs"][1]["machine"]["processors"]


@pytest.mark.parametrize("text", ['{"rounds": []}', '{"runs": 10}', "[]", "no JSON"])
def test_another_file_is_no_result_file(measures: ModuleType, tmp_path: Path, text: str) -> None:
    import result_files

    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a result file with runs"):
        result_files.put_run(path, {"name": "sends"})
    assert path.read_text() == text
    with pytest.raises(ValueError, match="is not a directory"):
        result_files.read_result(tmp_path / "away" / "result.json")


def test_printed_tables_become_runs(measures: ModuleType) -> None:
    import result_files

    printed = """3.11, 2 CPUs

| | Java | GantryMQ |
|---|---|---|
| sends, /s | 1,200 | 3.5 (2 to 1,000) |
| note |  | 0.33 (JVM 0.1) |

| row |
|---|
| -1 |
frame reader                   123 ns/message (median 130)
append, messages/s           2.9e+05  (2.8e+05 to 3e+05)
"""
    assert result_files.tables(printed) == [
        (["", "Java", "GantryMQ"], [["sends, /s", 1200, [3.5, 2, 1000]], ["note", None, "0.33 (JVM 0.1)"]]),
        (["row"], [[-1]]),
        (
            ["what", "figure"],
            [["frame reader", "123 ns/message (median 130)"], ["append, messages/s", [290000, 280000, 300000]]],
        ),
    ]


def test_a_program_writes_what_it_prints(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, BENCH / "client_micro.py", "--repeat", "1", "--out", path, "--name", "calls"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (run,) = json.loads(path.read_text())["runs"]
    assert (run["program"], run["name"], run["rounds"]) == ("bench/client_micro.py", "calls", 1)
    assert {"machine", "versions", "native", "date", "commit"} <= run.keys()
    assert [row[0] for row in run["rows"]] == [re.split(" {2,}", line)[0] for line in printed.splitlines()]
    path.write_text("no JSON")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr == f"--out: {path} is not a result file with runs\n"
    assert refused.stdout == ""


@pytest.mark.parametrize("result", sorted((BENCH / "results").glob("*.json")), ids=lambda path: path.stem)
def test_the_program_of_a_result_can_write_it(result: Path) -> None:
    found = json.loads(result.read_text())
    runs = found["runs"] if isinstance(found.get("runs"), list) else []
    programs = {each["program"].split()[0] for each in (found, *runs) if each.get("program")}
    for program in programs - {"./dev"}:
        source = (BENCH.parent / program).read_text()
        assert re.search(r"add_out\(|\"--(out|json|results)\"", source), program
