"""Measures gantrymq.arrow, beside confluent-kafka with Arrow batches converted by hand; prints a Markdown table.

    .venv/bin/python bench/arrow.py [--rows N] [--rounds N] [--sizes BYTES...]
    GANTRYMQ_NATIVE=0 .venv/bin/python bench/arrow.py

README.md describes the calls and the columns.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from kafka_broker import build, kafka_broker
from measures import cell, spread
from result_files import add_out, recorded
from systems import settled_cpu_seconds

from gantrymq.arrow import read_topic, scan_store, write_topic
from gantrymq.kernels import native
from gantrymq.testing.processes import ProcessCluster

BATCH_ROWS = 10_000
#: The number of queues of a new topic, with both systems.
QUEUES = 4
HEADER = ("body", "call", "CPU, µs per row", "CPU of the broker, µs per row", "rows/s", "memory, MiB")


@dataclass
class Call:
    """A call that is measured. `run` returns the number of its rows. `broker` is the process id of the broker."""

    run: Callable[[], int]
    broker: int | None = None
    #: One tuple for each round, with the values of the columns HEADER[2:] in this order.
    figures: list[tuple[float, ...]] = field(default_factory=list)


def main() -> None:
    args = parse_args()
    with recorded(args, "bench/arrow.py"):
        measure_all(args)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=400_000, help="messages of a call (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes")
    add_out(parser)
    return parser.parse_args()


def measure_all(args: argparse.Namespace) -> None:
    """Runs the benchmark, and prints the results."""
    print(f"{'with' if native else 'without'} gantrymq-native, {os.cpu_count()} CPUs\n")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            import arrow_kafka  # noqa: F401  # an error here names the missing package

            build()
            kafka = stack.enter_context(kafka_broker(directory / "kafka", QUEUES))
        except (ImportError, RuntimeError) as e:
            print(f"Without Kafka: {e}\n")
            kafka = None
        print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
        for size in args.sizes:
            # Each size has its own cluster, because scan_store reads the whole log.
            with ProcessCluster(directory / str(size)) as cluster:
                measure_size(cluster, directory / str(size) / "broker-a", kafka, args, size)


def measure_size(
    cluster: ProcessCluster, store: Path, kafka: tuple[str, int] | None, args: argparse.Namespace, size: int
) -> None:
    """Measures all calls with bodies of `size` bytes, and prints their rows of the table."""
    servers, pid, topic, rows = cluster.namesrv_addr, cluster.brokers[0].pid, f"bench-{size}", args.rows
    body = os.urandom(size)
    write_topic(servers, topic, messages(rows, body))
    reads = {
        "read_topic": Call(lambda: count(read_topic(servers, topic)), pid),
        "read_topic, body alone": Call(lambda: count(read_topic(servers, topic, columns=["body"])), pid),
        "scan_store": Call(lambda: count(scan_store(store, topic))),
    }
    writes = {"write_topic": Call(lambda: write_topic(servers, f"{topic}-written", messages(rows, body)), pid)}
    if kafka is not None:
        from arrow_kafka import read_kafka, write_kafka

        address, kafka_pid = kafka
        write_kafka(address, topic, messages(rows, body))
        reads["confluent-kafka, consume"] = Call(lambda: count(read_kafka(address, topic, rows)), kafka_pid)
        writes["confluent-kafka, produce"] = Call(
            lambda: write_kafka(address, f"{topic}-written", messages(rows, body)), kafka_pid
        )
    for some in (reads, writes):
        # In turn, so that a temporarily slow machine affects all calls. The first round warms up.
        for number in range(1 + args.rounds):
            for call in some.values():
                figures = measure(call, rows)
                if number:
                    call.figures.append(figures)
        for name, call in some.items():
            texts = [cell(spread(values)) for values in zip(*call.figures, strict=True)]
            if call.broker is None:
                texts[1] = ""
            print(f"| {size} B | {name} | {' | '.join(texts)} |", flush=True)


def count(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def messages(rows: int, body: bytes) -> pa.RecordBatchReader:
    """Returns rows with this body, keys and a tag."""
    schema = pa.schema([("body", pa.binary()), ("keys", pa.string()), ("tags", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, BATCH_ROWS):
            numbers = range(first, min(rows, first + BATCH_ROWS))
            columns = [[body] * len(numbers), [f"k{n}" for n in numbers], ["A"] * len(numbers)]
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def measure(call: Call, rows: int) -> tuple[float, ...]:
    """Returns CPU time per row of this process and of the broker, in µs, rows per second, and peak memory in MiB."""
    broker_before = 0.0 if call.broker is None else settled_cpu_seconds(call.broker, "the call")
    Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM.
    began, before = time.perf_counter(), time.process_time()
    found = call.run()
    cpu_s, took = time.process_time() - before, time.perf_counter() - began
    if found != rows:
        raise SystemExit(f"{found} rows, not {rows}")
    broker_s = 0.0 if call.broker is None else settled_cpu_seconds(call.broker, "the call") - broker_before
    memory = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert memory is not None
    return cpu_s / rows * 1e6, broker_s / rows * 1e6, rows / took, int(memory[1]) / 1024


if __name__ == "__main__":
    main()
