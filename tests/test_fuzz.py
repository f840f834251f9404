"""Every fuzz target runs over its corpus and some mutations, and notices faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fuzz import targets
from fuzz.engine import Hang, check, run
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[1]
RUST = ROOT / "native" / "fuzz"


@pytest.mark.parametrize("name", TARGETS)
def test_targets(name: str) -> None:
    result = run(name, seed=0, cases=50 if name in ("recovery", "compaction") else 200)
    assert result.finding is None, result.finding
    assert result.cases > 50


def test_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> None:
        while data:
            pass
        raise KeyError

    monkeypatch.setitem(targets.TARGETS, "fails", fails)
    assert isinstance(check("fails", b""), KeyError)
    assert isinstance(check("fails", b"x"), Hang)


def test_a_run_has_a_result_file(tmp_path: Path) -> None:
    """A run replaces the rows of its own targets."""
    path = tmp_path / "fuzz.json"
    rows = [["headers", 0, 0.1, 1, "earlier"], ["frames", 7, 0.1, 0, "earlier"]]
    path.write_text(json.dumps({"runs": [{"name": "fuzz", "rows": rows}]}))
    command = [sys.executable, "-m", "fuzz", "headers", "properties", "--minutes", "0.01", "--out", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [run] = json.loads(path.read_text())["runs"]
    assert (run["name"], run["program"]) == ("fuzz", "./dev fuzz")
    assert [(name, cases > 0, findings, commit == "earlier") for name, cases, _, findings, commit in run["rows"]] == [
        ("frames", True, 0, True),
        ("properties", True, 0, False),
        ("headers", True, 0, False),
    ]


def test_cargo_builds_each_rust_target() -> None:
    files = {path.name for path in (RUST / "fuzz_targets").glob("*.rs")}
    binaries = tomllib.loads((RUST / "Cargo.toml").read_text())["bin"]
    assert {Path(each["path"]).name for each in binaries} == files


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
@pytest.mark.skipif(not RUST.is_dir(), reason="the sdist has no native/")
def test_the_rust_targets_compile() -> None:
    done = subprocess.run(
        ["cargo", "check", "--quiet", "--manifest-path", RUST / "Cargo.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
