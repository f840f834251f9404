"""Runs a micro-benchmark of this commit and of another one in turn, and prints the ratio of each row.

    .venv/bin/python bench/compare_micro.py COMMIT client_micro.py
    .venv/bin/python bench/compare_micro.py COMMIT micro.py --rounds 9

Each commit runs its own version of the benchmark, because the steps that it measures are internal. A row's figure is
the smallest of all rounds: other programs can only make a step slower. Rows that only one of the two commits has are
left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from checkouts import ROOT, checkout, python_of

_ROW = re.compile(r"^(?P<name>\S.*?) {2,}(?P<figure>[\d.,]+) (?P<unit>[nu]s)\b", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("program", help="its name in bench/")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each commit (%(default)s)")
    args = parser.parse_args()
    base = checkout(args.commit)
    print(f"{'ns of CPU time':60} {base.name:>10} {'now':>10} {'ratio':>6}")
    for name, (before, after) in compare(base, args.program, rounds=args.rounds).items():
        print(f"{name:60} {before:10,.0f} {after:10,.0f} {after / before:6.3f}")
    return 0


def compare(base: Path, program: str, *options: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Returns the figures of each row in nanoseconds: those of the checkout `base`, and the present ones."""
    best: list[dict[str, float]] = [{}, {}]
    for number in range(rounds):
        print(f"{program}: round {number + 1}/{rounds}", file=sys.stderr, flush=True)
        for figures, directory, python in zip(best, (base, ROOT), (python_of(base), sys.executable), strict=True):
            for name, figure in run(python, directory / "bench" / program, *options).items():
                figures[name] = min(figure, figures.get(name, figure))
    before, after = best
    return {name: (before[name], after[name]) for name in before if name in after}


def run(python: str | Path, program: Path, *options: str) -> dict[str, float]:
    """Returns the figure of each row, in nanoseconds."""
    output = subprocess.run([python, program, *options], capture_output=True, text=True, check=True).stdout
    return {
        row["name"]: float(row["figure"].replace(",", "")) * (1000 if row["unit"] == "us" else 1)
        for row in _ROW.finditer(output)
    }


if __name__ == "__main__":
    sys.exit(main())
