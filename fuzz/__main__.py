"""./dev fuzz: inputs that are nearly valid, for each decoder. A crash is printed with the command that repeats it."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import shutil
import subprocess
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fuzz.engine import check
from fuzz.target_runs import run_target
from fuzz.targets import TARGETS

_ROOT = Path(__file__).parent.parent
_RUST = _ROOT / "native" / "fuzz"
_BENCH = _ROOT / "bench"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__.partition(":")[2].strip())
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of --list (default: all)")
    parser.add_argument("--minutes", type=float, default=5, help="CPU time of all targets together (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a result file, such as bench/results/fuzz.json")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--input", type=Path, help="run one target on this file only")
    options = parser.parse_args()
    rust = [f"rust:{path.stem}" for path in sorted((_RUST / "fuzz_targets").glob("*.rs"))]
    if options.list:
        for name, function in TARGETS.items():
            print(f"{name:20}{(function.__doc__ or '').partition('.')[0]}")
        print(*rust, sep="\n")
        return 0
    names = options.targets or [*TARGETS, *rust]
    if unknown := [name for name in names if name not in TARGETS and name not in rust]:
        parser.error(f"unknown target {unknown[0]!r}: --list names them")
    if options.input:
        if len(names) != 1 or names[0] in rust:
            parser.error("--input needs the name of one Python target")
        logging.disable()
        error = check(names[0], options.input.read_bytes())
        traceback.print_exception(error) if error else print("no finding")
        return 1 if error else 0
    if any(name in rust for name in names) and not _has_cargo_fuzz():
        if options.targets:
            parser.error("the targets rust:* need cargo-fuzz and a nightly toolchain: cargo install cargo-fuzz")
        print("the targets rust:* are skipped: they need cargo-fuzz (cargo install cargo-fuzz)", file=sys.stderr)
        names = [name for name in names if name not in rust]
    files = _result_files()
    try:
        columns = ["target", "inputs", "CPU time, s", "findings", "commit"]
        put_run = files.recorder(options.out, "./dev fuzz", columns)
        latest = _rows(files.read_result(options.out)) if options.out else {}
    except (OSError, ValueError) as e:
        parser.error(f"--out: {e}")
    # Without a result file, a checkout is not necessary.
    commit = files.commit() if options.out else ""
    seconds = options.minutes * 60 / len(names)
    python = [name for name in names if name not in rust]
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as processes:
        rows = list(processes.map(partial(run_target, seconds=seconds, seed=options.seed), python))
    latest |= {row[0]: [*row, commit] for row in rows}
    put_run("fuzz", [latest[name] for name in TARGETS if name in latest])
    found = any(row[-1] for row in rows)
    for name in rust:
        if name in names:
            found |= not _run_rust(name, seconds, options.seed)
    return 1 if found else 0


def _result_files() -> Any:
    # The benchmarks are no package.
    sys.path.insert(0, str(_BENCH))
    try:
        return importlib.import_module("result_files")
    finally:
        sys.path.pop(0)


def _rows(result: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the rows of a result file by target. A run replaces only the rows of its own targets."""
    return {row[0]: row for run in result["runs"] if run["name"] == "fuzz" for row in run["rows"]}


def _has_cargo_fuzz() -> bool:
    if not shutil.which("cargo"):
        return False
    return subprocess.run(["cargo", "fuzz", "--version"], capture_output=True).returncode == 0


def _run_rust(name: str, seconds: float, seed: int) -> bool:
    _, _, rust_name = name.partition(":")
    command = ["cargo", "+nightly", "fuzz", "run", rust_name, "--", f"-max_total_time={int(seconds) or 1}"]
    command.append(f"-seed={seed + 1}")
    print(f"{name}: {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=_RUST.parent).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
