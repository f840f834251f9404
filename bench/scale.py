"""Measures how cost grows with messages, topics, queues, groups, connections, sizes and brokers.

    .venv/bin/python bench/scale.py                     # all of it, about ten minutes
    .venv/bin/python bench/scale.py --only groups size  # some of it; the other figures stay
    .venv/bin/python bench/scale.py --only              # none of it: limits and charts are made again
    .venv/bin/python bench/scale.py --quick             # does it work at all; writes nothing

Prints Markdown tables, keeps the figures in results/scale.json, draws the charts of docs/measurements.md, and writes
the limits into docs/performance.md. tools/measurements.py then renders the tables. README.md describes what is
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measures import figure, progress
from result_files import commit
from scale_chart import Panel, chart
from scale_clients import connections, groups
from scale_limits import limits
from scale_namesrv import brokers
from scale_run import Row, Run
from scale_servers import busy_s
from scale_store import messages, queues, size, topics

from gantrymq.background.event_loop import new_event_loop
from gantrymq.kernels import native
from gantrymq.remoting.listener import most_connections

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "scale.json"
DOCUMENT = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Dimension:
    """One dimension of growth. `columns` are the headings of its figures; those in `charted` are drawn."""

    measure: Callable[[Run, Sequence[int]], Coroutine[Any, Any, list[Row]]]
    points: tuple[int, ...]
    x: str
    columns: Mapping[str, str]
    charted: tuple[str, ...]


_SEND_AND_PULL = {"send": "CPU per send, µs", "pull": "CPU per pull, µs", "found": "messages per pull"}
_MEMORY = {"own": "memory, MiB", "resident": "memory with mapped files, MiB"}
_OF_QUEUES = {
    "unused_ready": "start without messages, s",
    "unused_cpu": "CPU of that start, s",
    "ready": "start with messages, s",
    "ready_cpu": "CPU of that start, s",
    "killed": "start after SIGKILL, s",
    "killed_cpu": "CPU of that start, s",
    "stop": "shutdown, s",
    "unused": "memory without messages, MiB",
    "own": "memory, MiB",
    "descriptors": "file descriptors",
    **_SEND_AND_PULL,
    "idle": "idle CPU, %",
    "stall": "longest wait, ms",
    "disk": "disk, MiB",
    "namesrv": "memory of the NameServer, MiB",
    "namesrv_idle": "idle CPU of the NameServer, %",
}
DIMENSIONS = {
    "messages": Dimension(
        messages,
        (10_000, 100_000, 1_000_000, 10_000_000),
        "messages",
        {
            "ready": "start, s",
            "ready_cpu": "CPU of that start, s",
            "killed": "start after SIGKILL, s",
            "killed_cpu": "CPU of that start, s",
            **_MEMORY,
            "batched": "CPU per message in batches, µs",
            **_SEND_AND_PULL,
            "by_key": "CPU per query by key, µs",
            "by_time": "CPU per search by time, µs",
            "disk": "disk, MiB",
        },
        ("ready", "killed", "own", "send", "pull"),
    ),
    "topics": Dimension(
        topics, (50, 500, 5_000, 50_000), "topics", _OF_QUEUES, ("ready", "own", "send", "pull", "idle")
    ),
    "queues": Dimension(queues, (8, 80, 800, 8_000), "queues", _OF_QUEUES, ("ready", "own", "send", "pull", "idle")),
    "groups": Dimension(
        groups,
        (20, 200, 2_000, 20_000),
        "groups",
        {
            "ready": "start, s",
            "ready_cpu": "CPU of that start, s",
            "own": "memory, MiB",
            **_SEND_AND_PULL,
            "heartbeat": "CPU per group heartbeat, µs",
            "commit": "CPU per commit, µs",
            "idle": "CPU of heartbeats, %",
            "stall": "longest wait, ms",
        },
        ("ready", "own", "heartbeat", "commit", "idle"),
    ),
    "connections": Dimension(
        connections,
        (10, 100, 1_000, 10_000),
        "connections",
        {
            "own": "memory, MiB",
            "each": "memory per connection, KiB",
            "descriptors": "file descriptors",
            "join": "CPU per connect and close, µs",
            "heartbeat": "CPU per heartbeat, µs",
            **_SEND_AND_PULL,
            "idle": "CPU of waiting pulls, %",
            "stall": "longest wait, ms",
        },
        ("own", "join", "send", "pull", "idle"),
    ),
    "size": Dimension(
        size,
        (128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20),
        "body size, bytes",
        {
            **_SEND_AND_PULL,
            "read": "CPU per message read, µs",
            "record": "record in the log, bytes",
            "sent_mib": "MiB sent per CPU second",
            "read_mib": "MiB read per CPU second",
            "own": "memory, MiB",
        },
        ("send", "read", "sent_mib", "read_mib", "own"),
    ),
    "brokers": Dimension(
        brokers,
        (1, 10, 100, 1_000),
        "brokers",
        {
            "own": "memory, MiB",
            "first": "CPU, first registration, µs",
            "again": "CPU, same topics again, µs",
            "changed": "CPU, changed topics, µs",
            "route": "CPU per route query, µs",
            "answer": "route response, KiB",
            "body": "registration, KiB",
            "slowest": "longest wait for a route, ms",
        },
        ("own", "again", "changed", "route", "slowest"),
    ),
}


def main() -> int:
    args = parse_args()
    # An exit on SIGTERM also stops the servers.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    most = raise_descriptor_limit()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in args.only:
        dimension = DIMENSIONS[name]
        points = dimension.points[:-1] if args.quick else dimension.points
        if name == "connections":
            points = tuple(point for point in points if point <= most)
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            found = measure(name, dimension, Run(Path(directory), args.quick), points)
        if points[-1:] != dimension.points[-1:] and not args.quick:
            found["conditions"] += f"; a broker with this ulimit -n takes {most:,} connections"
        print(f"\n{table(name, found)}", flush=True)
        results[name] = found
        if not args.quick:
            # Writes each result at once, so that a later failure does not lose it.
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            write_document(results)
    if not args.only:
        write_document(results)
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=DIMENSIONS,
        default=list(DIMENSIONS),
        metavar="WHAT",
        help=f"of {', '.join(DIMENSIONS)} (all); none: limits and charts are made again",
    )
    parser.add_argument("--quick", action="store_true", help="smaller points, shorter times; writes nothing")
    parser.add_argument("--directory", type=Path, help="where the stores go, 20 GB (the system's temporary directory)")
    return parser.parse_args()


def raise_descriptor_limit() -> int:
    """Raises the limit of this process and its children. Returns how many connections a broker can then accept."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return most_connections(hard)


def measure(name: str, dimension: Dimension, run: Run, points: Sequence[int]) -> dict[str, Any]:
    """Returns the rows of a dimension, and the conditions of the measurement."""
    load = os.getloadavg()[0]
    began, busy, own = time.monotonic(), busy_s(), own_cpu_s()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        rows = runner.run(dimension.measure(run, points))
    seconds = time.monotonic() - began
    others = max(busy_s() - busy - (own_cpu_s() - own), 0.0) / seconds / (os.cpu_count() or 1)
    progress(f"{name}: {seconds:.0f} s, others used {others:.0%} of the machine")
    conditions = (
        f"{os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{'without' if native is None else 'with'} gantrymq-native. Run of {seconds:.0f} s; other programs: "
        f"{others:.0%} of CPU; load: {load:.1f}; commit {commit()}"
    )
    return {"date": time.strftime("%Y-%m-%d"), "conditions": conditions, "rows": rows}


def own_cpu_s() -> float:
    """Returns the CPU time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# -- tables and charts ------------------------------------------------------------------------------------------


def table(name: str, result: Mapping[str, Any]) -> str:
    """Returns a Markdown table with the conditions above it."""
    dimension = DIMENSIONS[name]
    lines = [f"{result['conditions']}.", "", f"| {dimension.x} | {' | '.join(dimension.columns.values())} |"]
    lines.append("|---|" + "---|" * len(dimension.columns))
    for row in result["rows"]:
        cells = [figure(row[column]) for column in dimension.columns]
        lines.append(f"| {row['x']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_document(results: Mapping[str, Any]) -> None:
    """Writes the charts, and the limits between their marks in docs/performance.md."""
    for name, result in results.items():
        dimension = DIMENSIONS[name]
        panels = [
            Panel(dimension.columns[column], [(row["x"], row[column]) for row in result["rows"]])
            for column in dimension.charted
        ]
        (IMAGES / f"scale-{name}.svg").write_text(chart(f"Cost by {dimension.x}", dimension.x, panels))
    if results.keys() == DIMENSIONS.keys():
        written = limits({name: result["rows"] for name, result in results.items()})
        DOCUMENT.write_text(between_marks(DOCUMENT.read_text(), "limits", written))


def between_marks(text: str, name: str, written: str) -> str:
    """Returns `text` with new content between the marks. Raises ValueError if the marks are missing."""
    begin, end = f"<!-- {name}: written by bench/scale.py -->\n", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise ValueError(f"{DOCUMENT} has no marks of {name}")
    return f"{before}{begin}{written}{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
