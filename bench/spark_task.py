"""What a Spark task's reader takes of the processor, without Spark; prints a Markdown table.

    .venv/bin/python bench/spark_task.py [--rows N] [--rounds N] [--sizes BYTES...]
    GANTRYMQ_NATIVE=0 .venv/bin/python bench/spark_task.py

One broker process has the messages in two queues. This process handles the batches like Spark's worker: it writes
them as an Arrow stream to a socket that another process reads. The figures are medians of the rounds: CPU time per
row, in microseconds. If other programs run, they are more reliable than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from result_files import add_out, recorded
from spark import fill
from systems import settled_cpu_seconds

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.rows import read_ranges
from gantrymq.kernels import native
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RangesPartition, RocketMQBatchReader
from gantrymq.testing.processes import ProcessCluster

QUEUES = 2
#: Columns of a read without options.
COLUMNS = pa.schema([(name, kind) for name, kind in ARROW_TYPES.items() if name not in ("properties", "bodyError")])
EMPTY = "import socket; s = socket.socket(fileno=0); b = bytearray(1 << 20)\nwhile s.recv_into(b): pass"
PARTS = ("pulls (the loop's thread)", "records to Arrow", "Arrow to the socket", "all of the task", "broker")


def main() -> None:
    args = parse_args()
    with recorded(args, "bench/spark_task.py"):
        measure_all(args)


def measure_all(args: argparse.Namespace) -> None:
    """Runs the benchmark, and prints the results."""
    print(f"{'with' if native else 'without'} gantrymq-native, {os.cpu_count()} CPUs\n")
    print(f"| body | {' | '.join(PARTS)} | rows/s |\n|{'---|' * (len(PARTS) + 2)}")
    with tempfile.TemporaryDirectory() as directory, ProcessCluster(Path(directory)) as cluster:
        broker = cluster.brokers[0].pid
        for size in args.sizes:
            topic = f"bench-{size}"
            asyncio.run(fill(cluster, topic, QUEUES, args.rows, size))
            settled_cpu_seconds(broker, "GantryMQ")
            options = ReadOptions.parse({"nameserver": cluster.namesrv_addr, "subscribe": topic})
            # The first round warms up.
            rounds = [measure(options, args.rows, broker) for _ in range(1 + args.rounds)][1:]
            *times, rate = (statistics.median(values) for values in zip(*rounds, strict=True))
            print(f"| {size} B | {' | '.join(f'{us:.2f}' for us in times)} | {rate:,.0f} |", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=400_000, help="messages of a read (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="measured reads (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes")
    add_out(parser)
    return parser.parse_args()


def measure(options: ReadOptions, rows: int, broker: int) -> tuple[float, ...]:
    """Measures one read. Returns the time of each of PARTS in microseconds per row, and the rows per second."""
    partitions = RocketMQBatchReader(options, COLUMNS).partitions()
    ours, theirs = socket.socketpair()
    other = subprocess.Popen([sys.executable, "-S", "-c", EMPTY], stdin=theirs)
    theirs.close()
    broker_before, began, before = cpu_s(broker), time.perf_counter(), time.process_time()
    thread_before, writing_s, found = time.thread_time(), 0.0, 0
    with ours, ours.makefile("wb", 65536) as stream:
        writer = None
        for partition in partitions:
            assert isinstance(partition, RangesPartition)
            for batch in read_ranges(partition.ranges, options, COLUMNS):
                found += batch.num_rows
                written = time.thread_time()
                # As pyspark does, put all columns into one struct column.
                row = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
                message = pa.RecordBatch.from_arrays([row], ["_0"])
                if writer is None:
                    writer = pa.RecordBatchStreamWriter(stream, message.schema)
                writer.write_batch(message)
                writing_s += time.thread_time() - written
        assert writer is not None
        writer.close()
    thread_s, all_s = time.thread_time() - thread_before, time.process_time() - before
    took = time.perf_counter() - began
    other.wait()
    if found != rows:
        raise SystemExit(f"{found} rows were read, not {rows}")
    parts = (all_s - thread_s, thread_s - writing_s, writing_s, all_s, cpu_s(broker) - broker_before)
    return (*(part / rows * 1e6 for part in parts), rows / took)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
