"""Runs seeds as tests: one process per file runs its seeds in turn, and each test waits for its own seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RUN = """
import json, sys
from sim import system
system.install()
from sim.many import run_all
from sim.run import run_seed
for result in run_all(sys.argv[1:], 1, run_seed):
    print(json.dumps([result.seed, result.problems]), flush=True)
"""


class Seeds:
    """Runs the given seeds in this order."""

    def __init__(self, seeds: list[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *map(str, seeds)],
            cwd=ROOT,
            # Fixed hash seed: sets have the same order in every run.
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._problems: dict[int, list[str]] = {}

    def problems(self, seed: int) -> list[str]:
        """Returns the problems of a seed. Waits until the seed was run."""
        assert self._process.stdout is not None
        while seed not in self._problems:
            line = self._process.stdout.readline()
            assert line, f"the process ended with {self._process.wait()} before seed {seed}"
            done, problems = json.loads(line)
            self._problems[int(done)] = problems
        return self._problems[seed]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def seeds_of_file(request: pytest.FixtureRequest) -> Iterator[Seeds]:
    """Runs the selected seeds of a file, which are the values of its tests' parameter `seed`."""
    chosen = [
        item.callspec.params["seed"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    seeds = Seeds(chosen)
    try:
        yield seeds
    finally:
        seeds.end()
