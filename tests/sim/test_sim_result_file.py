"""`./dev sim --out`: the run in the result file has its conditions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sim(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sim", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_run_has_its_conditions(tmp_path: Path) -> None:
    path = tmp_path / "simulator.json"
    planted = {"name": "planted bugs", "rows": [["bugs", 1]]}
    path.write_text(json.dumps({"runs": [{"name": "simulator", "date": None}, planted]}))
    done = sim("--seeds", 2, "--jobs", 1, "--out", path)
    assert done.returncode == 0, done.stdout + done.stderr
    run, other = json.loads(path.read_text())["runs"]
    assert other == planted
    assert (run["name"], run["program"]) == ("simulator", "./dev sim")
    assert run["options"].startswith("--seeds 2 --jobs 1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    assert re.fullmatch(r"[0-9a-f]{8}\+?", run["commit"])
    assert run["machine"]["processors"]
    assert run["versions"]["python"]
    rows = dict(run["rows"])
    assert (rows["seeds"], rows["failed"], rows["failed seeds"]) == ("2 seeds", "0 failed", "none")
    assert rows["messages"] > 0
    assert 0 < rows["CPU of a seed, s"] < 60


def test_an_interrupted_run_goes_on_and_counts_all_its_seeds(tmp_path: Path) -> None:
    results, path = tmp_path / "results", tmp_path / "simulator.json"
    # Seed 0 is finished, and the interruption left a part of the line of seed 1.
    finished = {"seed": "0", "problems": [], "messages": 1_000_000, "cpu_s": 50.0}
    assert sim("--seeds", 0, "--results", results).returncode == 0
    with results.open("a") as file:
        file.write(json.dumps(finished) + '\n{"seed": "1')
    done = sim("--seeds", 2, "--jobs", 1, "--results", results, "--out", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1 seeds in ")
    (run,) = json.loads(path.read_text())["runs"]
    rows = dict(run["rows"])
    assert rows["seeds"] == "2 seeds"
    assert rows["messages"] > 1_000_000
    assert 25 < rows["CPU of a seed, s"] < 50


@pytest.mark.parametrize(
    "options", [("--seed", "1"), ("--speed",), ("--first",), ("--planted", "sync"), ("--shrink", "--seed", "1")]
)
def test_a_part_is_no_result(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = sim(*options, "--out", tmp_path / "simulator.json")
    assert done.returncode == 2
    assert "--out needs a run of all seeds or all planted bugs" in done.stderr
    assert not any(tmp_path.iterdir())


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    done = sim("--seeds", 1, "--out", path)
    assert done.returncode == 2
    assert "is not a result file with runs" in done.stderr
    assert path.read_text() == "[]"
