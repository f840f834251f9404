"""./dev sim: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Fixed hash seed: sets have the same order in every run. UTC: message ids count from the same midnight.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC"}

# Before the imports, which take most of the time of a short run.
if __name__ == "__main__" and not _ENVIRONMENT.items() <= os.environ.items():
    os.execve(sys.executable, [sys.executable, "-m", "sim", *sys.argv[1:]], os.environ | _ENVIRONMENT)

from sim import system  # noqa: E402

system.install()

from sim import speed, timeline  # noqa: E402
from sim.many import Results, run_all, summary, warm_up  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.planted import find_all  # noqa: E402
from sim.run import Outcome, Run, run_seed  # noqa: E402
from sim.shrink import plan_of, shrink, size, to_json  # noqa: E402

_BENCH = Path(__file__).parent.parent / "bench"
#: A line of progress appears after this many seeds.
_PROGRESS_SEEDS = 500

#: Adds the rows of a run, with the conditions at its start, to the file `--out`. Arguments: name of the run, rows.
PutRun = Callable[[str, list[list[object]]], None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--from", dest="begin", type=int, default=0, metavar="SEED", help="the first (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where they are kept; seeds in it are left out")
    parser.add_argument("--seed", help="this one alone, in this process; or a plan as --shrink prints it")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="where a picture of it goes, an SVG")
    parser.add_argument("--shrink", action="store_true", help="the smallest plan that fails as --seed does")
    parser.add_argument("--trace", type=Path, help="where its trace goes")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--speed", action="store_true", help="how fast a run without faults is")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a result file, such as bench/results/simulator.json")
    parser.add_argument(
        "--planted", nargs="?", const="", metavar="WORDS", help="whether each planted bug is found; those with WORDS"
    )
    args = parser.parse_args()
    if args.seed is None and (args.shrink or args.trace or args.timeline):
        parser.error("--shrink, --trace and --timeline are of one run: say which with --seed")
    if args.shrink and (args.trace or args.timeline):
        parser.error("--shrink makes many runs: have the trace and the timeline of the plan that it ends with")
    if args.out is not None and (args.seed is not None or args.speed or args.first or args.planted):
        parser.error("--out needs a run of all seeds or all planted bugs: omit --seed, --speed, --first and WORDS")
    if args.shrink:
        return _shrink(args.seed, args.jobs)
    if args.seed is not None:
        return _one(args.seed, args.trace, args.timeline)
    if args.speed:
        return _speed()
    # The benchmarks are no package.
    sys.path.insert(0, str(_BENCH))
    result_files: Any = importlib.import_module("result_files")
    sys.path.pop(0)
    try:
        put_run: PutRun = result_files.recorder(args.out, "./dev sim", ["what", "figure"])
    except (OSError, ValueError) as e:
        parser.error(f"--out: {e}")
    if args.planted is not None:
        return _planted(args.seeds, args.jobs, args.planted, put_run)
    try:
        results = Results(args.results, result_files.commit())
    except (OSError, ValueError) as e:
        parser.error(f"--results: {e}")
    seeds = range(args.begin, args.begin + args.seeds)
    return _many(seeds, args.jobs, results, put_run, stop_at_first=args.first)


def _planted(seeds: int, jobs: int, words: str, put_run: PutRun) -> int:
    found = find_all(seeds, jobs, words)
    missed = [name for name, seed in found.items() if seed is None]
    rows: list[list[object]] = [["bugs in `sim/planted.py`", len(found)]]
    put_run("planted bugs", [*rows, ["bugs not found", ", ".join(missed) or "none"]])
    return 1 if missed else 0


def _one(seed: str, trace: Path | None, picture: Path | None) -> int:
    began = time.perf_counter()
    run = Run(plan_of(seed))
    outcome = run.execute()
    _print(outcome)
    print(f"{outcome.simulated_s:.0f} s in {time.perf_counter() - began:.2f} s; {outcome.messages} messages")
    if trace is not None:
        trace.write_text(outcome.trace_text)
    if picture is not None:
        picture.write_text(timeline.draw(timeline.of(run, outcome.problems)))
    sys.stdout.flush()
    # Exit at once: a normal exit of Python would run more code of the simulated programs.
    os._exit(1 if outcome.problems else 0)


def _speed() -> int:
    warm_up()
    failed = 0
    for name, plan in speed.plans():
        # As seeds do, each plan runs in a process of its own.
        if not (pid := os.fork()):
            problems, line = speed.measure(plan)
            print(f"{name}: {line}", *problems, sep="\n  ", flush=True)
            os._exit(1 if problems else 0)
        failed |= os.waitpid(pid, 0)[1]
    return 1 if failed else 0


def _shrink(seed: str, jobs: int) -> int:
    def run(plans: list[Plan]) -> list[list[str]]:
        texts = [to_json(plan) for plan in plans]
        found = {result.seed: result.problems for result in run_all(texts, jobs, run_seed)}
        return [found[text] for text in texts]

    plan = plan_of(seed)
    problems = run([plan])[0]
    if not problems:
        print(f"seed {seed} doesn't fail")
        return 1
    print(*problems, sep="\n")
    print(size(plan), flush=True)
    plan = shrink(plan, problems, run, lambda said: print(said, flush=True), at_once=jobs)
    print(*map(str, plan.faults), sep="\n")
    print(f"./dev sim --seed '{to_json(plan)}'")
    return 0


def _print(outcome: Outcome) -> None:
    for fault in outcome.faults:
        print(f"    {fault}")
    for problem in outcome.problems:
        print(f"  {problem}")


def _many(seeds: range, jobs: int, results: Results, put_run: PutRun, *, stop_at_first: bool) -> int:
    began = time.perf_counter()
    wanted = [str(seed) for seed in seeds]
    left = [seed for seed in wanted if seed not in results.all]
    for done, result in enumerate(run_all(left, jobs, run_seed, stop_at_first=stop_at_first), 1):
        results.add(result)
        if result.problems:
            print(f"seed {result.seed}:", *result.problems, sep="\n  ", flush=True)
        if not done % _PROGRESS_SEEDS:
            print(f"{done} of {len(left)} seeds in {time.perf_counter() - began:.0f} s", flush=True)
    print(summary([results.all[seed] for seed in left if seed in results.all], time.perf_counter() - began))
    known = [results.all[seed] for seed in wanted if seed in results.all]
    failed = [result.seed for result in known if result.problems]
    if results.path is not None:
        names = ", ".join(failed) or "none"
        print(f"{results.path}: {len(known)} of {len(wanted)} seeds, {len(failed)} failed: {names}")
    rows: list[list[object]] = [["seeds", f"{len(known):,} seeds"], ["failed", f"{len(failed):,} failed"]]
    rows.append(["failed seeds", ", ".join(failed) or "none"])
    rows.append(["messages", sum(result.messages for result in known)])
    cpu_s = sum(result.cpu_s for result in known) / max(len(known), 1)
    put_run("simulator", [*rows, ["CPU of a seed, s", round(cpu_s, 3)]])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
