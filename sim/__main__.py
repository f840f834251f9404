"""./dev sim: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from sim import system

system.install()

from sim.planted import find_all  # noqa: E402
from sim.run import Outcome, run_seed  # noqa: E402

_HASH_SEED = "0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--from", dest="begin", type=int, default=0, metavar="SEED", help="the first (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--seed", help="this one alone, in this process")
    parser.add_argument("--trace", type=Path, help="where its trace goes")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--planted", action="store_true", help="whether each planted bug is found")
    args = parser.parse_args()
    if args.seed is not None:
        return _one(args.seed, args.trace)
    if args.planted:
        return find_all(args.seeds, args.jobs)
    return _many(range(args.begin, args.begin + args.seeds), args.jobs, stop_at_first=args.first)


def _one(seed: str, trace: Path | None) -> int:
    began = time.perf_counter()
    outcome = run_seed(seed)
    _print(outcome)
    print(f"{outcome.simulated_s:.0f} s in {time.perf_counter() - began:.2f} s; {outcome.messages} messages")
    if trace is not None:
        trace.write_text("".join(f"{at:12.6f} {what}\n" for at, what in outcome.trace))
    sys.stdout.flush()
    # Nothing of the run is to go on while Python takes it apart.
    os._exit(1 if outcome.problems else 0)


def _print(outcome: Outcome) -> None:
    for fault in outcome.faults:
        print(f"    {fault}")
    for problem in outcome.problems:
        print(f"  {problem}")


def _many(seeds: range, jobs: int, *, stop_at_first: bool) -> int:
    began = time.perf_counter()
    running: dict[int, tuple[int, int]] = {}
    failed: list[int] = []
    simulated_s = messages = 0.0
    left = iter(seeds)
    while True:
        while len(running) < jobs and not (failed and stop_at_first) and (seed := next(left, None)) is not None:
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                os.close(reader)
                _child(seed, writer)
            os.close(writer)
            running[pid] = seed, reader
        if not running:
            break
        # Read before waiting: a full pipe would keep it from ending.
        pid = next(iter(running))
        seed, reader = running.pop(pid)
        with os.fdopen(reader) as file:
            text = file.read()
        _, status = os.waitpid(pid, 0)
        found: dict[str, Any] = {"problems": [f"the run ended with status {status}"], "s": 0.0, "n": 0}
        if text:
            found = json.loads(text)
        simulated_s += found["s"]
        messages += found["n"]
        if found["problems"]:
            failed.append(seed)
            print(f"seed {seed}:", *found["problems"], sep="\n  ", flush=True)
    took_s = time.perf_counter() - began
    print(
        f"{len(seeds)} seeds in {took_s:.1f} s: {simulated_s / took_s:,.0f} simulated seconds and "
        f"{messages / took_s:,.0f} messages a second; {len(failed)} failed"
    )
    return 1 if failed else 0


def _child(seed: int, writer: int) -> None:
    try:
        outcome = run_seed(str(seed))
        result: dict[str, Any] = {"problems": outcome.problems, "s": outcome.simulated_s, "n": outcome.messages}
    except BaseException as e:
        result = {"problems": [f"{type(e).__name__}: {e}"], "s": 0, "n": 0}
    os.write(writer, json.dumps(result).encode())
    os._exit(0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        # Sets are in the same order in every run.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "sim", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": _HASH_SEED, "TZ": "UTC"},
        )
    sys.exit(main())
