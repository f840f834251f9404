"""Whole simulated runs of `./dev sim`, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sim(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def test_the_summary_of_some_seeds() -> None:
    """test_sim_seeds_from_0.py and test_sim_seeds_from_60.py run more seeds."""
    done = sim("--seeds", "2", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 seeds in .*; 0 failed$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("options", [["--trace", "x"], ["--timeline", "x"], ["--shrink"], ["--shrink", "--trace", "x"]])
def test_what_would_be_left_undone_is_refused(options: list[str]) -> None:
    done = sim("--seeds", "0", *options, *(["--seed", "1"] if len(options) > 2 else []))
    assert done.returncode == 2
    assert "--shrink" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("seed", [1, 9])
def test_a_seed_is_the_same_run_each_time(seed: int, tmp_path: Path) -> None:
    """The run is the same alone and after another one, and with other memory addresses.

    In seed 9, several pulls of a client wait for the same change of a route.
    """
    sim("--seed", str(seed), "--trace", str(tmp_path / "trace"))
    options = ["--seeds", "2", "--from", str(seed - 1), "--jobs", "1", "--results", str(tmp_path / "results")]
    sim(*options, PYTHONMALLOC="malloc")
    trace = (tmp_path / "trace").read_bytes()
    assert trace.count(b"\n") > 1000
    _commit, _seed_before, result = (tmp_path / "results").read_text().splitlines()
    assert json.loads(result)["digest"] == sha256(trace).hexdigest()[:16]


def test_a_seed_is_the_same_run_in_each_time_zone(tmp_path: Path) -> None:
    """PYTHONHASHSEED is set already, so the program does not restart itself to set TZ."""
    for zone in ("UTC", "JST-9"):
        sim("--seed", "36", "--trace", str(tmp_path / zone), PYTHONHASHSEED="0", TZ=zone)
    trace = (tmp_path / "UTC").read_bytes()
    assert b"SendOutcomeUnknown: message 0A000303" in trace
    assert (tmp_path / "JST-9").read_bytes() == trace


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("number", [0, 3, 6])
def test_planted_bugs_are_found(number: int) -> None:
    """Runs some bugs only; `./dev sim --planted` runs all of them."""
    code = f"from sim import planted; print(planted.find(planted.BUGS[{number}], 200, 1)[0])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\d+\n", done.stdout), done.stdout


def test_the_package_has_every_planted_bugs_place() -> None:
    code = "from sim.planted import BUGS, patched; [patched(bug) for bug in BUGS]; assert len(BUGS) >= 20"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
