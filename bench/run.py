"""Apache's benchmark against Apache's broker and this project's, in turn on one machine; prints a Markdown table.

Run it by `./dev bench` on a machine that does nothing else; README.md says what is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from programs import SERIALIZE_TYPES, command_line, mqadmin
from servers import Server, build, gantry_broker, gantry_namesrv, java_broker, java_namesrv, missing_tools

#: After so long without a request a server's memory is taken as idle.
IDLE_S = 5.0
CLIENT_TIMEOUT_S = 900.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: 1 GiB, both systems' default; the tests take smaller files.
_STORE_CONFIG = {"mappedFileSizeCommitLog": 1 << 30}
#: The collector is that of Apache's runbroker.sh; its heap of 8 GiB would be a third of a small machine.
_JAVA_BROKER_OPTIONS = ["-Xms1g", "-Xmx4g", "-XX:+UseG1GC"]
_CLIENT_OPTIONS = ["-Xms512m", "-Xmx1g", "-XX:+UseG1GC"]


@dataclass(frozen=True)
class System:
    """One of the two that are compared."""

    name: str
    start_namesrv: Callable[[Path], Server]
    start_broker: Callable[[Path, str], Server]


JAVA = System(
    "Java",
    java_namesrv,
    lambda directory, namesrv: java_broker(directory, namesrv, options=_JAVA_BROKER_OPTIONS, **_STORE_CONFIG),
)
GANTRY = System(
    "GantryMQ", gantry_namesrv, lambda directory, namesrv: gantry_broker(directory, namesrv, **_STORE_CONFIG)
)


@dataclass(frozen=True)
class Measure:
    """A row of the table: what, and each system's value in each round."""

    name: str
    unit: str
    values: dict[str, list[float]]


@dataclass(frozen=True)
class Load:
    """A measured load: messages per second, and the broker's CPU time."""

    rate: float
    cpu_us: float
    "Microseconds of the broker's processor time per message."


def main() -> int:
    args = parse_args()
    missing = missing_tools()
    if missing:
        print(f"bench: {missing}", file=sys.stderr)
        return 1
    build()
    systems = {"java": [JAVA], "gantry": [GANTRY], "both": [JAVA, GANTRY]}[args.systems]
    measures: list[Measure] = []
    if args.start_ups:
        measures += measure_start_up(systems, args.start_ups)
    if args.rounds:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory, ExitStack() as stack:
            clusters = [(system, stack.enter_context(cluster(system, Path(directory)))) for system in systems]
            for size in args.sizes:
                measures += measure_sends(clusters, args, size)
                if args.consume:
                    measures += measure_reads(clusters, args, size)
    print(describe(args))
    print()
    print(table(systems, measures))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured runs of each system, in turn; 0: none (%(default)s)"
    )
    parser.add_argument(
        "--count", type=int, default=600_000, help="messages of one run, at least 3 s of sends (%(default)s)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=200_000, help="messages before each run, unmeasured (%(default)s)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=32, help="sending threads (%(default)s)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic (%(default)s)")
    parser.add_argument(
        "--serialize", choices=SERIALIZE_TYPES, default="ROCKETMQ", help="the client's headers (%(default)s)"
    )
    parser.add_argument("--no-consume", dest="consume", action="store_false", help="measure sends only")
    parser.add_argument("--start-ups", type=int, default=5, help="starts of each server; 0: none (%(default)s)")
    parser.add_argument("--systems", choices=["both", "java", "gantry"], default="both", help="(%(default)s)")
    parser.add_argument("--directory", type=Path, help="where the stores go (the system's temporary directory)")
    return parser.parse_args()


@contextmanager
def cluster(system: System, directory: Path) -> Iterator[tuple[Server, Server]]:
    """A NameServer and a broker of `system`, killed at the end."""
    with ExitStack() as stack:
        namesrv = system.start_namesrv(directory / f"{system.name}-namesrv")
        stack.callback(namesrv.kill)
        broker = system.start_broker(directory / f"{system.name}-broker", namesrv.address)
        stack.callback(broker.kill)
        yield namesrv, broker


def measure_start_up(systems: Sequence[System], rounds: int) -> list[Measure]:
    measures = {
        (server, what): Measure(f"{server}: {what}", unit, {system.name: [] for system in systems})
        for server in ("NameServer", "broker")
        for what, unit in (("start to open port", "s"), ("idle memory", "MiB"))
    }
    for round_number in range(rounds):
        for system in systems:
            progress(f"start-up {round_number + 1}/{rounds} of {system.name}")
            with tempfile.TemporaryDirectory() as directory, cluster(system, Path(directory)) as servers:
                time.sleep(IDLE_S)
                for name, server in zip(("NameServer", "broker"), servers, strict=True):
                    measures[name, "start to open port"].values[system.name].append(server.start_s)
                    measures[name, "idle memory"].values[system.name].append(resident_mib(server.process.pid))
    return list(measures.values())


Clusters = Sequence[tuple[System, tuple[Server, Server]]]


def measure_sends(clusters: Clusters, args: argparse.Namespace, size: int) -> list[Measure]:
    topic = f"bench{size}"
    for _, (namesrv, _) in clusters:
        queues = str(args.queues)
        output = mqadmin(
            namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", queues, "-w", queues
        )
        if "success" not in output:
            raise RuntimeError(f"the topic could not be made:\n{output}")

    def send(servers: tuple[Server, Server], _: int) -> Load:
        options = [topic, str(args.threads), str(size), str(args.warm_up), str(args.count)]
        line, cpu_s = run_load("org.gantrymq.interop.LoadProducer", servers, options, args.serialize, "[Complete]")
        complete = re.search(
            r"Send Total: (\d+) \| Send TPS: (\d+) .*Send Failed: (\d+) \| Response Failed: (\d+)", line
        )
        if complete is None:
            raise RuntimeError(f"the run was too short for the benchmark's rate, raise --count: {line}")
        total, rate, *failed = map(int, complete.groups())
        if total != args.count or any(failed):
            raise RuntimeError(f"sends failed: {line}")
        return Load(rate, cpu_s / args.count * 1e6)

    return alternate(clusters, args.rounds, f"{size} B sends", send)


def measure_reads(clusters: Clusters, args: argparse.Namespace, size: int) -> list[Measure]:
    def read(servers: tuple[Server, Server], round_number: int) -> Load:
        options = [f"bench{size}", f"bench_{round_number}", "20", str(args.count)]
        line, cpu_s = run_load("org.gantrymq.interop.LoadConsumer", servers, options, args.serialize, "DONE")
        return Load(args.count / float(line.split()[1]), cpu_s / args.count * 1e6)

    return alternate(clusters, args.rounds, f"{size} B reads", read)


def alternate(
    clusters: Clusters, rounds: int, name: str, run: Callable[[tuple[Server, Server], int], Load]
) -> list[Measure]:
    """Each system once a round, in turn: what slows the machine for a while slows both."""
    loads: dict[str, list[Load]] = {system.name: [] for system, _ in clusters}
    for round_number in range(rounds):
        for system, servers in clusters:
            load = run(servers, round_number)
            loads[system.name].append(load)
            progress(
                f"{name}, round {round_number + 1}/{rounds}, {system.name}: {load.rate:,.0f}/s, "
                f"{load.cpu_us:.1f} us of the broker's CPU each"
            )
    return [
        Measure(f"{name}: rate", "/s", {system: [load.rate for load in done] for system, done in loads.items()}),
        Measure(
            f"{name}: broker CPU",
            "µs/message",
            {system: [load.cpu_us for load in done] for system, done in loads.items()},
        ),
    ]


def run_load(
    main_class: str, servers: tuple[Server, Server], options: Sequence[str], serialize_type: str, last_line: str
) -> tuple[str, float]:
    """Runs a load program; its line that begins with `last_line`, and the broker's CPU seconds since it was READY."""
    namesrv, broker = servers
    with tempfile.TemporaryDirectory() as home:
        command = command_line(
            main_class,
            namesrv.address,
            *options,
            home=Path(home),
            serialize_type=serialize_type,
            options=_CLIENT_OPTIONS,
        )
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        overdue = threading.Timer(CLIENT_TIMEOUT_S, process.kill)
        overdue.start()
        try:
            await_line(process, "READY")
            before = cpu_seconds(broker.process.pid)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = await_line(process, last_line)
            return line, cpu_seconds(broker.process.pid) - before
        finally:
            overdue.cancel()
            process.kill()
            process.wait()


def await_line(process: subprocess.Popen[str], beginning: str) -> str:
    """The next line that begins so. Raises RuntimeError when the program ends before."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith(beginning):
            return line
        seen.append(line)
    raise RuntimeError(
        f"the load program ended (or took {CLIENT_TIMEOUT_S} s) without {beginning}:\n{''.join(seen[-20:])}"
    )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


def table(systems: Sequence[System], measures: Sequence[Measure]) -> str:
    """Medians, and for two systems the ratio of each round as median (minimum to maximum)."""
    names = [system.name for system in systems]
    rows = [["", *names, *([f"{names[1]} : {names[0]}"] if len(names) == 2 else [])]]
    for measure in measures:
        row = [f"{measure.name} ({measure.unit})"]
        row += [figure(statistics.median(measure.values[name])) for name in names]
        if len(names) == 2:
            ratios = [ours / theirs for theirs, ours in zip(*(measure.values[name] for name in names), strict=True)]
            row.append(f"{figure(statistics.median(ratios))} ({figure(min(ratios))} to {figure(max(ratios))})")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def figure(value: float) -> str:
    """Three significant digits, thousands whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe(args: argparse.Namespace) -> str:
    """What was run, for the line above the table."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{java_banner()}: {args.rounds} rounds of {args.count:,} messages after {args.warm_up:,} to warm up, "
        f"{args.threads} threads, {args.queues} queues, {args.serialize} headers; {args.start_ups} starts."
    )


def java_banner() -> str:
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr
    return output.partition("\n")[0].replace('"', "")


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
