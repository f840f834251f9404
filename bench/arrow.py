"""Measures `read_topic` and `write_topic` of gantrymq.arrow; prints a Markdown table.

    .venv/bin/python bench/arrow.py [--rows N] [--rounds N] [--sizes BYTES...]
    GANTRYMQ_NATIVE=0 .venv/bin/python bench/arrow.py

One broker process has the messages. The figures are medians of the rounds, after one round that warms up: rows per
second, and CPU time of this process per row, in microseconds. The last column is the largest resident memory of this
process so far.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from result_files import add_out, recorded
from systems import settled_cpu_seconds

from gantrymq.arrow import read_topic, write_topic
from gantrymq.kernels import native
from gantrymq.testing.processes import ProcessCluster

BATCH_ROWS = 10_000
HEADER = ("body", "call", "CPU, µs per row", "rows/s", "memory, MiB")


def main() -> None:
    args = parse_args()
    with recorded(args, "bench/arrow.py"):
        measure_all(args)


def measure_all(args: argparse.Namespace) -> None:
    """Runs the benchmark, and prints the results."""
    print(f"{'with' if native else 'without'} gantrymq-native, {os.cpu_count()} CPUs\n")
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    with tempfile.TemporaryDirectory() as directory, ProcessCluster(Path(directory)) as cluster:
        for size in args.sizes:
            servers, topic = cluster.namesrv_addr, f"bench-{size}"
            write_topic(servers, topic, messages(args.rows, size))
            settled_cpu_seconds(cluster.brokers[0].pid, "GantryMQ")
            for name, call in calls(servers, topic, args.rows, size).items():
                rounds = [measure(call, args.rows) for _ in range(1 + args.rounds)][1:]
                cpu_us, rate = (statistics.median(values) for values in zip(*rounds, strict=True))
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(f"| {size} B | {name} | {cpu_us:.2f} | {rate:,.0f} | {memory:.0f} |", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=400_000, help="messages of a call (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measured calls (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes")
    add_out(parser)
    return parser.parse_args()


def calls(servers: str, topic: str, rows: int, size: int) -> dict[str, Callable[[], int]]:
    """Returns the measured calls. Each one returns its number of rows."""
    return {
        "read_topic": lambda: sum(batch.num_rows for batch in read_topic(servers, topic)),
        "read_topic, body alone": lambda: sum(batch.num_rows for batch in read_topic(servers, topic, columns=["body"])),
        "write_topic": lambda: write_topic(servers, f"{topic}-written", messages(rows, size)),
    }


def messages(rows: int, size: int) -> pa.RecordBatchReader:
    """Returns rows with random bodies, keys and a tag."""
    schema = pa.schema([("body", pa.binary()), ("keys", pa.string()), ("tags", pa.string())])
    body = os.urandom(size)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, BATCH_ROWS):
            numbers = range(first, min(rows, first + BATCH_ROWS))
            columns = [[body] * len(numbers), [f"k{n}" for n in numbers], ["A"] * len(numbers)]
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def measure(call: Callable[[], int], rows: int) -> tuple[float, float]:
    """Returns the CPU time per row in microseconds, and the rows per second."""
    began, before = time.perf_counter(), time.process_time()
    found = call()
    cpu_s, took = time.process_time() - before, time.perf_counter() - began
    if found != rows:
        raise SystemExit(f"{found} rows, not {rows}")
    return cpu_s / rows * 1e6, rows / took


if __name__ == "__main__":
    main()
