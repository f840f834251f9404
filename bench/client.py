"""This project's client beside Apache's, in turn against one broker; prints a Markdown table.

Run it by `.venv/bin/python bench/client.py` on an idle machine. README.md describes what it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from measures import Measure, progress, table
from result_files import add_out, recorded
from systems import GANTRY, JAVA, cluster, cpu_seconds

# `systems` puts interop on the import path.
from programs import SERIALIZE_TYPES, command_line  # isort: skip
from servers import build, gantry_command, missing_tools  # isort: skip

#: LoadTopics names its topics with this prefix and a number from 0.
TOPIC_PREFIX = "client_bench"
TOPIC = f"{TOPIC_PREFIX}0"
CLIENT_TIMEOUT_S = 900.0
_JVM_OPTIONS = ["-Xms512m", "-Xmx1g", "-XX:+UseG1GC"]

#: Messages per second, and client CPU time per message in microseconds.
Figures = tuple[float, float]


def main() -> int:
    args = parse_args()
    if missing := missing_tools():
        print(f"bench: {missing}", file=sys.stderr)
        return 1
    build()
    with recorded(args, "bench/client.py"):
        measure_all(args)
    return 0


def measure_all(args: argparse.Namespace) -> None:
    """Measures both clients in turn, and prints the results."""
    measures: list[Measure] = []
    broker = {"gantry": GANTRY, "java": JAVA}[args.broker]
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, cluster(broker, Path(directory)) as servers:
        servers.make_topics([TOPIC], args.queues)
        for name, java, ours in loads(servers.namesrv.address, args):
            values: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
            for round_number in range(args.rounds):
                for run, client, (rates, cpu) in zip((java, ours), ("Java", "GantryMQ"), values, strict=True):
                    rate, cpu_us = run(round_number)
                    rates.append(rate)
                    cpu.append(cpu_us)
                    progress(f"{name}, round {round_number + 1}, {client}: {rate:,.0f}/s, {cpu_us:.1f} us of CPU each")
            (java_rates, java_cpu), (our_rates, our_cpu) = values
            measures += [
                Measure(f"{name}: rate", "/s", {JAVA.name: java_rates, GANTRY.name: our_rates}),
                Measure(f"{name}: client CPU", "µs/message", {JAVA.name: java_cpu, GANTRY.name: our_cpu}),
            ]
    print(describe(args))
    print()
    print(table([JAVA, GANTRY], measures))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--broker", choices=["gantry", "java"], default="gantry", help="whose (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each client, in turn (%(default)s)")
    parser.add_argument(
        "--count", type=int, default=400_000, help="messages of one run, at least 3 s of Java's sends (%(default)s)"
    )
    parser.add_argument("--warm-up", type=int, default=200_000, help="a JVM's before each run (%(default)s)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (%(default)s)")
    parser.add_argument("--threads", type=int, default=32, help="single sends under way at a time (%(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="messages of a batch (%(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="batches under way at a time (%(default)s)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic (%(default)s)")
    parser.add_argument("--serialize", choices=SERIALIZE_TYPES, default="ROCKETMQ", help="Java's headers (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where the store goes (the system's temporary directory)")
    add_out(parser)
    return parser.parse_args()


Run = Callable[[int], Figures]


def loads(namesrv: str, args: argparse.Namespace) -> list[tuple[str, Run, Run]]:
    """Returns (name, Java's run, our run) of each load.

    The reads consume the sent messages, from the first one on.
    """
    count, size = str(args.count), str(args.size)

    def java(program: str, *options: str, last_line: str = "DONE") -> Figures:
        return run_java(program, [namesrv, *options], args, last_line)

    def ours(command: str, *options: str) -> Figures:
        return run_ours(command, ["-n", namesrv, "-t", TOPIC, "-q", count, *options])

    threads, batches, batch, warm_up = str(args.threads), str(args.batches), str(args.batch), str(args.warm_up)
    return [
        (
            f"single sends of {size} B",
            lambda _: java("LoadProducer", TOPIC, threads, size, warm_up, count, last_line="[Complete]"),
            lambda _: ours("produce", "-w", threads, "-s", size),
        ),
        (
            f"batched sends of {size} B",
            lambda _: java("LoadTopics", TOPIC_PREFIX, "1", batches, size, batch, warm_up, count),
            lambda _: ours("produce", "-w", batches, "-s", size, "-b", batch),
        ),
        (
            f"reads of {size} B",
            lambda number: java("LoadConsumer", TOPIC, f"java_{number}", "20", count),
            lambda number: ours("consume", "-w", "20", "-g", f"gantry_{number}", "--fromFirst"),
        ),
    ]


def run_java(program: str, options: list[str], args: argparse.Namespace, last_line: str) -> Figures:
    """Measures a Java program from READY to the line that begins with `last_line`."""
    with tempfile.TemporaryDirectory() as home:
        command = command_line(
            f"org.gantrymq.interop.{program}",
            *options,
            home=Path(home),
            serialize_type=args.serialize,
            options=_JVM_OPTIONS,
        )
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        overdue = threading.Timer(CLIENT_TIMEOUT_S, process.kill)
        overdue.start()
        try:
            await_line(process, "READY")
            before = cpu_seconds(process.pid)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = await_line(process, last_line)
            cpu_s = cpu_seconds(process.pid) - before
        finally:
            overdue.cancel()
            process.kill()
            process.wait()
    if last_line == "DONE":
        return args.count / float(line.split()[1]), cpu_s / args.count * 1e6
    complete = re.search(r"Send TPS: (\d+) .*Send Failed: 0 \| Response Failed: 0", line)
    if complete is None:
        raise RuntimeError(f"sends failed, or the run was too short for the benchmark's rate (raise --count): {line}")
    return float(complete.group(1)), cpu_s / args.count * 1e6


def run_ours(command: str, options: list[str]) -> Figures:
    """Returns the figures of `gantry bench`, which needs no warm-up."""
    done = subprocess.run(
        gantry_command("bench", command, "--json", "-i", "0", *options),
        stdout=subprocess.PIPE,
        check=True,
        timeout=CLIENT_TIMEOUT_S,
    )
    figures = json.loads(done.stdout)
    return figures["messagesPerSecond"], figures["cpuUsPerMessage"]


def await_line(process: subprocess.Popen[str], beginning: str) -> str:
    """Returns the next line with this beginning. Raises RuntimeError if the program ends before."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith(beginning):
            return line
        seen.append(line)
    raise RuntimeError(f"the client ended, or took {CLIENT_TIMEOUT_S} s, without {beginning}:\n{''.join(seen[-20:])}")


def describe(args: argparse.Namespace) -> str:
    """Returns the conditions of the measurement, for the line above the table."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{args.broker}'s broker: {args.rounds} rounds of {args.count:,} messages, a JVM's after {args.warm_up:,} to "
        f"warm up, {args.queues} queues, {args.serialize} headers."
    )


if __name__ == "__main__":
    sys.exit(main())
