"""Finds hot paths that became more expensive, in less than a minute: the micro set that .ci/run runs.

    ./dev bench --instructions             # compares with bench/results/instructions.json
    ./dev bench --instructions --update    # makes the present counts the baseline

With valgrind, it counts the instructions of a message. Other programs do not affect this count. Without valgrind, or
with another interpreter than that of the baseline, it compares CPU times with the commit before (`--base`), in turn.
A row that costs over 5 % more is a warning. The exit status is then still 0.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import compare_micro
from checkouts import ROOT, checkout
from result_files import conditions, put_run, read_result

from gantrymq.kernels import native

BASELINE = ROOT / "bench" / "results" / "instructions.json"
_WORK = ROOT / "bench" / "instruction_work.py"
COLUMN = "instructions per message"
#: Rows that cost more than this, beside the baseline, are warnings.
LIMIT = 0.05
#: A loaded machine is slower, but its counts are the same.
_TIMEOUT_S = 3600
#: The options keep the comparison of CPU times short.
_MICRO_PROGRAMS = {"client_micro.py": ("--repeat", "9"), "micro.py": ("--repeat", "3", "--count", "8000")}
_MICRO_ROUNDS = 3


class NotCounted(Exception):
    """Instructions can't be counted, or not be compared. The message is the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the counts as the baseline")
    parser.add_argument("--base", default="HEAD~1", metavar="COMMIT", help="commit for CPU times (%(default)s)")
    args = parser.parse_args()
    try:
        if args.update:
            update(BASELINE)
            return 0
        unit, rows = COLUMN, count_and_compare(BASELINE)
    except NotCounted as e:
        if args.update:
            parser.error(str(e))
        try:
            unit, rows = "ns of CPU time", compare_times(args.base)
        except RuntimeError:
            print(f"instructions: {e}, and commit {args.base} can't be checked out: no comparison")
            return 0
        print(f"instructions: {e}: CPU times beside {args.base}")
    print("\n".join(report(unit, rows)))
    return 0


def report(unit: str, rows: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yields the lines of a table with the figures of the baseline and the present ones, then the warnings."""
    yield f"{unit:48} {'baseline':>10} {'now':>10} {'ratio':>6}"
    for name, (before, after) in rows.items():
        yield f"{name:48} {before:10,.0f} {after:10,.0f} {after / before:6.3f}"
    for name, (before, after) in rows.items():
        if after > before * (1 + LIMIT):
            yield f"warning: {name} costs {after / before - 1:.1%} more"


def count_and_compare(baseline: Path) -> dict[str, tuple[float, float]]:
    """Returns the counts of each row that the baseline also has: its own and the present one. Raises NotCounted."""
    runs = read_result(baseline)["runs"]
    if not runs:
        raise NotCounted("there is no baseline")
    (run,) = runs
    if run["interpreter"] != interpreter():
        raise NotCounted("the baseline is of another interpreter or native code")
    before = dict(run["rows"])
    return {name: (before[name], count) for name, count in counted().items() if name in before}


def update(baseline: Path) -> None:
    """Writes the present counts into the baseline. Raises NotCounted."""
    run = conditions()
    rows = counted()
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    put_run(
        baseline,
        run
        | {
            "program": "./dev bench",
            "name": "instructions",
            "options": "--instructions --update",
            "rounds": 1,
            "native": native is not None,
            "interpreter": interpreter(),
            "versions": {**run["versions"], "valgrind": version.removeprefix("valgrind-")},
            "columns": ["", COLUMN],
            "rows": [[name, round(count)] for name, count in rows.items()],
        },
    )


def interpreter() -> str:
    """Returns what the counts depend on, besides the code: the interpreter, its compiler, and native code."""
    version = platform.python_version().rpartition(".")[0]
    return f"Python {version}, {platform.python_compiler()}, {'native code' if native else 'no native code'}"


def counted() -> dict[str, float]:
    """Returns the instructions per message of each kind of work. Raises NotCounted."""
    if shutil.which("valgrind") is None:
        raise NotCounted("valgrind is not installed")
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    with tempfile.TemporaryDirectory() as directory:
        # A fixed seed gives dictionaries and sets the same order in each run.
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": directory}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Compiles the modules. Under valgrind, this would take most of the time.
        imports = [sys.executable, "-c", f"import {_WORK.stem}"]
        subprocess.run(imports, cwd=_WORK.parent, env=environment, timeout=_TIMEOUT_S, check=True)
        done = subprocess.run(
            [*command, sys.executable, _WORK], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    if done.returncode:
        raise NotCounted(f"valgrind failed with exit status {done.returncode}: {done.stderr[-500:]}")
    return per_message(done.stdout, done.stderr)


def per_message(printed: str, log: str) -> dict[str, float]:
    """Returns the instructions per message of each kind of work.

    Args:
        printed: Output of instruction_work.py: process, messages and kind, with few and then with many messages.
        log: Output of valgrind, with the instructions of each process.
    """
    instructions = {
        int(process): int(count.replace(",", ""))
        for process, count in re.findall(r"^==(\d+)== I +refs: +([\d,]+)$", log, re.MULTILINE)
    }
    runs: dict[str, list[tuple[int, int]]] = {}
    for line in printed.splitlines():
        process, messages, name = line.split(" ", 2)
        runs.setdefault(name, []).append((int(messages), instructions[int(process)]))
    return {name: (many_cost - few_cost) / (many - few) for name, ((few, few_cost), (many, many_cost)) in runs.items()}


def compare_times(commit: str) -> dict[str, tuple[float, float]]:
    """Returns the CPU times of a commit and the present ones. Raises RuntimeError if it can't be checked out."""
    base = checkout(commit)
    rows: dict[str, tuple[float, float]] = {}
    for program, options in _MICRO_PROGRAMS.items():
        rows |= compare_micro.compare(base, program, *options, rounds=_MICRO_ROUNDS)
    return rows


if __name__ == "__main__":
    sys.exit(main())
