"""./dev fuzz: inputs that are nearly valid, for each decoder. A crash is printed with the command that repeats it."""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import traceback
from hashlib import sha256
from pathlib import Path

from fuzz.engine import check, run
from fuzz.targets import TARGETS

_ROOT = Path(__file__).parent.parent
_RUST = _ROOT / "native" / "fuzz"
#: Inputs of findings. Git ignores this directory.
_CRASHES = _ROOT / "fuzz" / "crashes"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__.partition(":")[2].strip())
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of --list (default: all)")
    parser.add_argument("--minutes", type=float, default=5, help="CPU time of all targets together (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--input", type=Path, help="run one target on this file only")
    options = parser.parse_args()
    # Damaged files cause a line each.
    logging.disable()
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
        error = check(names[0], options.input.read_bytes())
        traceback.print_exception(error) if error else print("no finding")
        return 1 if error else 0
    if any(name in rust for name in names) and not _has_cargo_fuzz():
        if options.targets:
            parser.error("the targets rust:* need cargo-fuzz and a nightly toolchain: cargo install cargo-fuzz")
        print("the targets rust:* are skipped: they need cargo-fuzz (cargo install cargo-fuzz)", file=sys.stderr)
        names = [name for name in names if name not in rust]
    seconds = options.minutes * 60 / len(names)
    found = [name for name in names if not (_run_rust if name in rust else _run_python)(name, seconds, options.seed)]
    return 1 if found else 0


def _has_cargo_fuzz() -> bool:
    if not shutil.which("cargo"):
        return False
    return subprocess.run(["cargo", "fuzz", "--version"], capture_output=True).returncode == 0


def _run_python(name: str, seconds: float, seed: int) -> bool:
    result = run(name, seed=seed, cpu_s=seconds)
    print(f"{name:20}{result.cases:>10} inputs  {result.cpu_s:6.1f} s", flush=True)
    if result.finding is None:
        return True
    data, error = result.finding
    _CRASHES.mkdir(exist_ok=True)
    path = _CRASHES / f"{name}-{sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    traceback.print_exception(error)
    print(f"to repeat: ./dev fuzz {name} --input {path.relative_to(_ROOT)}", flush=True)
    return False


def _run_rust(name: str, seconds: float, seed: int) -> bool:
    _, _, rust_name = name.partition(":")
    command = ["cargo", "+nightly", "fuzz", "run", rust_name, "--", f"-max_total_time={int(seconds) or 1}"]
    command.append(f"-seed={seed + 1}")
    print(f"{name}: {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=_RUST.parent).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
