"""Tests that the micro set of .ci/run counts the instructions of a message, and warns of rows that cost more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from gantrymq.system import clock

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import instructions

    return instructions


def test_the_start_of_a_process_does_not_count(instructions: ModuleType) -> None:
    printed = "12 100 client: send\n13 300 client: send\n14 10 broker: sends\n15 20 broker: sends\n"
    log = "".join(
        f"==11== a line that is not a count\n=={process}== I {' ' * spaces}refs:      {count:,}\n"
        for process, spaces, count in (
            (12, 0, 2_000_000), (13, 2, 8_000_000), (14, 2, 1_100), (15, 2, 1_250), (11, 2, 900_000)
        )
    )  # fmt: skip
    assert instructions.per_message(printed, log) == {"client: send": 30_000, "broker: sends": 15}


def test_a_row_that_costs_over_5_percent_more_is_a_warning(instructions: ModuleType) -> None:
    rows = {"send": (1000.0, 1051.0), "send_batch": (1000.0, 1049.0), "pull": (2000.0, 1000.0)}
    lines = list(instructions.report("instructions per message", rows))
    assert [line.split()[-1] for line in lines[1:4]] == ["1.051", "1.049", "0.500"]
    assert lines[4:] == ["warning: send costs 5.1% more"]


def test_only_rows_of_the_baseline_are_compared(
    instructions: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(instructions, "counted", lambda: {"send": 1100.4, "pull": 500.0})
    baseline = tmp_path / "instructions.json"
    baseline.write_text(
        json.dumps({"runs": [{"interpreter": instructions.interpreter(), "rows": [["send", 1000], ["ack", 700]]}]})
    )
    assert instructions.count_and_compare(baseline) == {"send": (1000, 1100.4)}


def test_the_baseline_has_each_kind_of_work(instructions: ModuleType) -> None:
    import instruction_work

    (run,) = json.loads(instructions.BASELINE.read_text())["runs"]
    assert [name for name, _ in run["rows"]] == list(instruction_work.KINDS)
    # Only the program replaces the clocks.
    assert (clock.monotonic, clock.thread_time) == (time.monotonic, time.thread_time)


def test_without_a_baseline_nothing_is_compared(instructions: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(instructions.NotCounted, match="there is no baseline"):
        instructions.count_and_compare(tmp_path / "instructions.json")


def test_another_interpreter_is_not_compared(instructions: ModuleType, tmp_path: Path) -> None:
    baseline = tmp_path / "instructions.json"
    baseline.write_text(json.dumps({"runs": [{"interpreter": "Python 2.7", "rows": [["send", 1]]}]}))
    with pytest.raises(instructions.NotCounted, match="another interpreter"):
        instructions.count_and_compare(baseline)


def test_without_valgrind_and_another_commit_one_line_says_so(tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "git").symlink_to(git)
    done = subprocess.run(
        [sys.executable, BENCH / "instructions.py", "--base", "no-such-commit"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    reason = r"(valgrind is not installed|there is no baseline|the baseline is of another interpreter or native code)"
    line = rf"instructions: {reason}, and commit no-such-commit can't be checked out: no comparison\n"
    assert re.fullmatch(line, done.stdout)


def test_each_kind_of_work_runs(instructions: ModuleType) -> None:
    """Without valgrind: the counts of the processes are made up."""
    done = subprocess.run(
        [sys.executable, BENCH / "instruction_work.py"], capture_output=True, text=True, timeout=120, check=True
    )
    processes = [line.split(" ", 1)[0] for line in done.stdout.splitlines()]
    log = "".join(f"=={process}== I refs: {n * 1_000_000}\n" for n, process in enumerate(processes))
    counts = instructions.per_message(done.stdout, log)
    import instruction_work

    assert list(counts) == list(instruction_work.KINDS)
    assert all(count > 0 for count in counts.values())
