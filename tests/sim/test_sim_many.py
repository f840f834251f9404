"""sim/many.py: seeds in processes of their own, and the results file."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
from sim.many import Result, Results, run_all, summary
from sim.run import Outcome


def outcome(seed: str, problems: list[str]) -> Outcome:
    return Outcome(seed, problems, 100.0, 7, 7, [], [])


def fails_at_3(seed: str) -> Outcome:
    return outcome(seed, ["x" * 100_000] if seed == "3" else [])


def test_each_seed_has_a_process_of_its_own() -> None:
    def pid(seed: str) -> Outcome:
        return outcome(seed, [str(os.getpid())])

    pids = {result.problems[0] for result in run_all("abc", 2, pid)}
    assert len(pids) == 3
    assert str(os.getpid()) not in pids


def test_all_seeds_are_run_and_long_problems_come_through() -> None:
    results = {result.seed: result for result in run_all(map(str, range(8)), 3, fails_at_3)}
    assert sorted(results) == [str(seed) for seed in range(8)]
    assert [seed for seed, result in results.items() if result.problems] == ["3"]
    assert results["3"].problems == ["x" * 100_000]
    assert results["0"] == Result("0", [], 100.0, 7, sha256(b"").hexdigest()[:16], results["0"].cpu_s)


def test_the_first_that_fails_ends_it() -> None:
    done = [result.seed for result in run_all(map(str, range(8)), 1, fails_at_3, stop_at_first=True)]
    assert done == ["0", "1", "2", "3"]


def test_a_run_that_raises_or_dies_has_failed() -> None:
    def bad(seed: str) -> Outcome:
        if seed == "dies":
            os._exit(5)
        raise ValueError("no such thing")

    results = {result.seed: result.problems for result in run_all(["dies", "raises"], 1, bad)}
    assert results["raises"] == ["ValueError: no such thing"]
    assert results["dies"][0].startswith("the run ended with status")


def test_results_are_kept_and_half_a_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "results"
    first = Results(path, "abc")
    first.add(Result("1", [], 100.0, 5, cpu_s=0.5))
    first.add(Result("2", ["lost"], 100.0, 5, cpu_s=0.5))
    with path.open("a") as file:
        file.write(json.dumps({"seed": "3", "problems": []})[:-4])
    second = Results(path, "abc")
    assert second.all == first.all
    second.add(Result("3", []))
    assert sorted(Results(path, "abc").all) == ["1", "2", "3"]
    with pytest.raises(ValueError, match="has results of commit abc; this is def: use a new file"):
        Results(path, "def")
    assert "2 seeds in 4.0 s (0.50 s of a processor each)" in summary(first.all.values(), 4.0)
    assert "1 failed" in summary(first.all.values(), 4.0)


@pytest.mark.parametrize("content", ["notes\n", "notes", "[]\n", '{"commit": "abc"}\n{"seed": 1}\n'])
def test_another_file_is_no_results_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(ValueError, match="notes is no results file"):
        Results(path, "abc")
    assert path.read_text() == content
