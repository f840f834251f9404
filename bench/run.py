"""Apache's benchmark against Apache's broker and this project's, in turn on one machine; prints a Markdown table.

Run it by `./dev bench` on an idle machine. README.md describes what it measures. With `--compare COMMIT`, the system
beside this project is this project at COMMIT, and the rows that became more expensive are named. With `--processes`,
the systems are this project with these numbers of brokers.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

# `systems` comes first: it puts interop on the import path.
import systems
from checkouts import checkout, python_of
from loads import batches, latencies, pops, reads, sends, sync_flush_sends, topics
from measures import Measure, columns, more_expensive, progress, rows, table
from polls import polls
from programs import SERIALIZE_TYPES
from replication import measure_replication
from result_files import conditions, options, put_run, read_result
from servers import build, missing_tools
from systems import GANTRY, JAVA, Cluster, System, cluster, gantry

from gantrymq.kernels import native

#: After this time without requests, a server's memory counts as idle memory. In seconds.
IDLE_S = 5.0


@dataclass(frozen=True)
class Kind:
    """A kind of measurement. Kinds with the same `pair` share their servers, and run in this order."""

    measure: Callable[[Sequence[Cluster], argparse.Namespace], list[Measure]]
    pair: str = "plain"
    #: Additional configuration keys of the brokers.
    config: dict[str, object] = field(default_factory=dict)
    #: Kind that must run before.
    needs: str | None = None


KINDS = {
    "sends": Kind(sends),
    "reads": Kind(reads, needs="sends"),
    "pops": Kind(pops, needs="sends"),
    "batches": Kind(batches),
    "latency": Kind(latencies),
    "sync-flush": Kind(sync_flush_sends, "sync", {"flushDiskType": "SYNC_FLUSH"}),
    "topics": Kind(topics, "topics"),
    "polls": Kind(polls, "polls"),
}
START = "start"
#: Like `START`, but with its own servers.
REPLICATION = "replication"
ALL = [START, *KINDS, REPLICATION]


def main() -> int:
    args = parse_args()
    missing = missing_tools()
    if missing:
        print(f"bench: {missing}", file=sys.stderr)
        return 1
    run = conditions() | {"name": args.name or ", ".join(args.only)}
    build()
    compared = compared_systems(args)
    measures: list[Measure] = []
    if START in args.only:
        measures += measure_start(compared, args.start_ups)
    for pair in dict.fromkeys(KINDS[name].pair for name in args.only if name in KINDS):
        kinds = {name: kind for name, kind in KINDS.items() if name in args.only and kind.pair == pair}
        measures += measure_pair(compared, kinds, args)
    if REPLICATION in args.only:
        measures += measure_replication(compared, args)
    print(describe(args))
    print()
    print(table(compared, measures))
    if args.compare:
        print()
        print(more_expensive(compared, measures))
    if args.out is not None:
        run["versions"]["java"] = java_banner().split()[2]
        run |= {"program": "bench/run.py", "options": options(), "native": native is not None}
        run |= {"rounds": args.rounds, "columns": columns(compared), "rows": rows(compared, measures)}
        put_run(args.out, run)
    return 0


def compared_systems(args: argparse.Namespace) -> list[System]:
    if args.compare:
        base = checkout(args.compare)
        return [gantry(f"GantryMQ at {base.name}", str(python_of(base))), GANTRY]
    if args.processes:
        return [gantry(f"--processes {count}", processes=count) for count in args.processes]
    return {"java": [JAVA], "gantry": [GANTRY], "both": [JAVA, GANTRY]}[args.systems or "both"]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL, metavar="KIND", help="%(choices)s (all)")
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each system, in turn (%(default)s)")
    parser.add_argument(
        "--warm-up-rounds",
        type=int,
        default=10,
        help="at most, before: until three differ by less than 5 %% (%(default)s)",
    )
    parser.add_argument(
        "--count", type=int, default=600_000, help="messages of one run, at least 3 s of sends (%(default)s)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=200_000, help="messages before each run, unmeasured (%(default)s)"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[128, 1024],
        metavar="BYTES",
        help="body sizes of sends and reads; the others take the first (%(default)s)",
    )
    parser.add_argument("--threads", type=int, default=32, help="sending threads (%(default)s)")
    parser.add_argument("--queues", type=int, default=8, help="queues of a topic (%(default)s)")
    parser.add_argument(
        "--topics", type=int, nargs="+", default=[1_000, 10_000], metavar="N", help="of topics (%(default)s)"
    )
    parser.add_argument("--polls", type=int, default=5_000, help="waiting pulls (%(default)s)")
    parser.add_argument("--latency-rate", type=int, default=2_000, help="messages a second of latency (%(default)s)")
    parser.add_argument("--latency-s", type=int, default=60, help="length of a run of latency, s (%(default)s)")
    parser.add_argument(
        "--serialize", choices=SERIALIZE_TYPES, default="ROCKETMQ", help="the client's headers (%(default)s)"
    )
    parser.add_argument("--start-ups", type=int, default=5, help="starts of each server (%(default)s)")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument("--compare", metavar="COMMIT", help="measure this project at COMMIT instead of Java's")
    compared.add_argument(
        "--processes", type=int, nargs="+", metavar="N", help="measure gantry broker --processes N, for each N"
    )
    compared.add_argument("--systems", choices=["both", "java", "gantry"], help="(both)")
    parser.add_argument("--directory", type=Path, help="where the stores go (the system's temporary directory)")
    parser.add_argument("--out", type=Path, help="add the table to this result file, such as bench/results/broker.json")
    parser.add_argument("--name", help="name of the run in --out; a run of the same name is replaced (the kinds)")
    args = parser.parse_args()
    if args.out is not None:
        try:
            read_result(args.out)
        except ValueError as e:
            parser.error(f"--out: {e}")
    for name in args.only:
        needs = KINDS[name].needs if name in KINDS else None
        if needs and needs not in args.only:
            parser.error(f"--only {name} reads what {needs} sends: name both")
    for name in ("rounds", "count", "start_ups", "polls", "latency_rate", "latency_s"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1")
    return args


def measure_pair(compared: Sequence[System], kinds: dict[str, Kind], args: argparse.Namespace) -> list[Measure]:
    """Measures all kinds that share a pair of clusters."""
    measures: list[Measure] = []
    config = next(iter(kinds.values())).config
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, ExitStack() as stack:
        clusters = [stack.enter_context(cluster(system, Path(directory), **config)) for system in compared]
        for kind in kinds.values():
            measures += kind.measure(clusters, args)
    return measures


def measure_start(compared: Sequence[System], rounds: int) -> list[Measure]:
    """Measures the start time of servers, and their memory without clients."""
    measures = {
        (server, what): Measure(f"{server}: {what}", unit, {system.name: [] for system in compared})
        for server in ("NameServer", "broker")
        for what, unit in (("start to open port", "s"), ("idle memory", "MiB"))
    }
    for round_number in range(rounds):
        for system in compared:
            progress(f"start {round_number + 1}/{rounds} of {system.name}")
            with tempfile.TemporaryDirectory() as directory, cluster(system, Path(directory)) as started:
                time.sleep(IDLE_S)
                for name, server in (("NameServer", started.namesrv), ("broker", started.broker)):
                    memory = systems.resident_mib(server.process.pid)
                    measures[name, "start to open port"].values[system.name].append(server.start_s)
                    measures[name, "idle memory"].values[system.name].append(memory)
    return list(measures.values())


def describe(args: argparse.Namespace) -> str:
    """Returns the conditions of the measurement, for the line above the table."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{java_banner()}: {args.rounds} rounds, after those that warm up, of {args.count:,} messages, each after "
        f"{args.warm_up:,} of the client to warm up, {args.threads} threads, {args.queues} queues, "
        f"{args.serialize} headers; {args.start_ups} starts."
    )


def java_banner() -> str:
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr
    return output.partition("\n")[0].replace('"', "")


if __name__ == "__main__":
    sys.exit(main())
