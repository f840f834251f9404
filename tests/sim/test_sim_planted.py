"""Planted bugs, mostly of replicas and controllers: a plan finds each one, and finds nothing without the bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim.planted import BUGS, plant
from sim.planted_plans import PLANS
from sim.shrink import to_json

ROOT = Path(__file__).parents[2]


def run(plan: str, package: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = {} if package is None else {"PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-m", "sim", "--seed", plan],
        cwd=ROOT,
        env=os.environ | path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("name", PLANS)
def test_it_is_found(name: str, tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    plant(bug, tmp_path)
    done = run(to_json(PLANS[name]), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert bug.says in done.stdout
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", {to_json(plan): name for name, plan in PLANS.items()}.values())
def test_without_it_nothing_is_found(name: str) -> None:
    done = run(to_json(PLANS[name]))
    assert done.returncode == 0, done.stdout + done.stderr
