"""Measures mechanisms that docs/decisions justifies with figures, each one beside its alternative.

    .venv/bin/python bench/decisions.py [--results FILE]

- transactions: half messages that are sent in batches and ended by ranges, and half messages one by one. One process
  runs the broker and the producer.
- decoders: the records of a pull become Arrow batches in native code, with numpy, or one by one in Python.

The results are in microseconds of CPU time per message: the minimum and the median of some runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from gantrymq.arrow.body_values import CorruptBodies
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.native_records import NativeRecords
from gantrymq.arrow.numpy_records import NumpyRecords
from gantrymq.arrow.record_batches import record_batches
from gantrymq.kernels import native
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import encode_host, encode_record

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "broker"), str(ROOT / "tests")]

from half_range_support import GROUP, end_all, prepare_many  # noqa: E402
from test_transaction_ranges import started  # noqa: E402

MESSAGES = 10_000
BATCH = 500
CONCURRENT = 100
BODY = bytes(128)
PULL_BYTES = 4 * 1024 * 1024
RUNS = 9
COLUMNS = ("body", "topic", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "keys", "tags", "msgId")


async def single_us(directory: Path) -> tuple[float, float]:
    """Returns the costs to store and to commit a half message that is sent and ended on its own."""
    async with started(directory) as (_, producer):
        began, halves = time.process_time(), []
        for _ in range(0, MESSAGES, CONCURRENT):
            sends = (producer.prepare("orders", BODY, GROUP, queue_id=0) for _ in range(CONCURRENT))
            halves += await asyncio.gather(*sends)
        stored = time.process_time()
        for first in range(0, MESSAGES, CONCURRENT):
            await asyncio.gather(*(producer.end(half) for half in halves[first : first + CONCURRENT]))
        return _per_message(stored - began), _per_message(time.process_time() - stored)


async def ranges_us(directory: Path) -> tuple[float, float]:
    """Returns the costs to store and to commit a half message that is sent in a batch."""
    async with started(directory) as (_, producer):
        began = time.process_time()
        own = {"UNIQ_KEY": "7F01"}
        batches = [await prepare_many(producer, "orders", [BODY] * BATCH, own) for _ in range(MESSAGES // BATCH)]
        stored = time.process_time()
        await end_all(producer, batches)
        return _per_message(stored - began), _per_message(time.process_time() - stored)


def _per_message(seconds: float) -> float:
    return 1e6 * seconds / MESSAGES


def transactions() -> dict[str, object]:
    results: dict[str, object] = {}
    for name, run in (("one by one", single_us), ("batches and ranges", ranges_us)):
        costs = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as directory:
                costs.append(asyncio.run(run(Path(directory) / "store")))
        results[name] = {
            "store_us": [round(value, 1) for value in _figures([store for store, _ in costs])],
            "commit_us": [round(value, 1) for value in _figures([commit for _, commit in costs])],
        }
    return results


def decoders(size: int) -> dict[str, object]:
    buffer = b"".join(_record(n, size) for n in range(PULL_BYTES // (size + 180)))
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in COLUMNS])

    def with_kernel(kind: type[NativeRecords | NumpyRecords]) -> Callable[[], int]:
        def decode() -> int:
            records = kind(buffer, COLUMNS)
            batches = record_batches(records, schema, "orders", "b", None, CorruptBodies.FAIL, check_crc=True)
            return sum(batch.num_rows for batch in batches)

        return decode

    def one_by_one() -> int:
        messages = list(decode_messages(buffer))
        columns = {
            "body": [message.body for message in messages],
            "queueId": [message.queue_id for message in messages],
            "queueOffset": [message.queue_offset for message in messages],
            "keys": [message.keys for message in messages],
            "tags": [message.tags for message in messages],
            "msgId": [message.msg_id for message in messages],
        }
        return int(pa.Table.from_pydict(columns).num_rows)

    ways = {"numpy": with_kernel(NumpyRecords), "one by one": one_by_one}
    if native is not None:
        ways = {"native": with_kernel(NativeRecords)} | ways
    results: dict[str, object] = {}
    for name, decode in ways.items():
        decode()
        costs = []
        for _ in range(RUNS):
            began = time.thread_time()
            rows = decode()
            costs.append(1e6 * (time.thread_time() - began) / rows)
        results[name] = [round(value, 2) for value in _figures(costs)]
    return results


def _record(number: int, size: int) -> bytes:
    host = encode_host("10.1.2.3", 10911)
    properties = encode_properties({"KEYS": f"k{number}", "TAGS": "a", "UNIQ_KEY": "0A" * 16})
    times = 1_700_000_000_123 + number, 1_700_000_000_456 + number
    body = bytes(size)
    return encode_record(
        3, 7, number, number * 300, 0, times[0], host, times[1], host, 0, 0, body, b"orders", properties
    )


def _figures(values: list[float]) -> tuple[float, float]:
    return min(values), statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures mechanisms beside their alternatives.")
    parser.add_argument("--results", type=Path, help="the file for the results, as JSON")
    arguments = parser.parse_args()
    results = {
        "program": "bench/decisions.py",
        "python": platform.python_version(),
        "transactions": transactions(),
        "decoders_us": {f"{size} bytes": decoders(size) for size in (128, 1024)},
    }
    text = json.dumps(results, indent=1) + "\n"
    print(text)
    if arguments.results is not None:
        arguments.results.write_text(text)


if __name__ == "__main__":
    main()
