"""Compares engines for the units of light queues: SQLite, LMDB and RocksDB. See docs/decisions/light-queues.md.

    python bench/light_queue_engines.py sqlite --queues 1000000 --units 2000000

The packages `lmdb` and `rocksdict` are only needed to measure these engines. Each run prints one line of JSON. The
units go to random queues, in transactions of `--batch` units. Every queue gets at least one unit.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from struct import Struct
from time import perf_counter, process_time

Batch = list[tuple[int, int, int]]

_KEY = Struct(">QQ")
_UNIT = Struct(">qiq")


class Sqlite:
    """The store of this project: one table in the order of the log, one index by queue and offset."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._db = sqlite3.connect(path / "units.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA cache_size = -65536")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS unit (id INTEGER PRIMARY KEY, queue INTEGER, position INTEGER, "
            "physical INTEGER, size INTEGER, tags INTEGER)"
        )
        self._db.execute("CREATE UNIQUE INDEX IF NOT EXISTS by_queue ON unit (queue, position)")

    def write(self, batch: Batch) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT INTO unit (queue, position, physical, size, tags) SELECT value ->> 0, value ->> 1, value ->> 2, "
            "200, 0 FROM json_each(?)",
            (json.dumps(batch),),
        )
        self._db.execute("COMMIT")

    def end(self, queue: int) -> int:
        (found,) = self._db.execute("SELECT max(position) FROM unit WHERE queue = ?", (queue,)).fetchone()
        return -1 if found is None else int(found)

    def close(self) -> None:
        self._db.close()


class Lmdb:
    def __init__(self, path: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=1 << 36, metasync=False, sync=False, writemap=True)

    def write(self, batch: Batch) -> None:
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(
                [(_KEY.pack(queue, offset), _UNIT.pack(physical, 200, 0)) for queue, offset, physical in batch]
            )

    def end(self, queue: int) -> int:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            is_found = (cursor.set_range(_KEY.pack(queue + 1, 0)) and cursor.prev()) or cursor.last()
            key = _KEY.unpack(cursor.key()) if is_found else (-1, -1)
            return key[1] if key[0] == queue else -1

    def close(self) -> None:
        self._env.sync(True)
        self._env.close()


class Rocks:
    def __init__(self, path: Path) -> None:
        from rocksdict import Options, Rdict, WriteBatch

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(path), options)
        self._batch = WriteBatch

    def write(self, batch: Batch) -> None:
        writes = self._batch(raw_mode=True)
        for queue, offset, physical in batch:
            writes.put(_KEY.pack(queue, offset), _UNIT.pack(physical, 200, 0))
        self._db.write(writes)

    def end(self, queue: int) -> int:
        found = self._db.iter()
        found.seek_for_prev(_KEY.pack(queue, (1 << 64) - 1))
        key = _KEY.unpack(found.key()) if found.valid() else (-1, -1)
        return int(key[1]) if key[0] == queue else -1

    def close(self) -> None:
        self._db.close()


ENGINES = {"sqlite": Sqlite, "lmdb": Lmdb, "rocksdict": Rocks}


def rss_mib(*, peak: bool = False) -> float:
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    status = Path("/proc/self/status").read_text().splitlines()
    anonymous = next(line for line in status if line.startswith("RssAnon"))
    return int(anonymous.split()[1]) / 1024


def _write(engine: str, path: Path, queues: int, units: int, batch: int) -> dict[str, float]:
    store = ENGINES[engine](path)
    ends = [0] * queues
    draw = random.Random(1)
    before = rss_mib()
    began, began_cpu = 0.0, 0.0
    spent, spent_cpu = 0.0, 0.0
    pending: Batch = []
    for number in range(units):
        queue = number if number < queues else draw.randrange(queues)
        pending.append((queue, ends[queue], number * 200))
        ends[queue] += 1
        if len(pending) == batch or number == units - 1:
            began, began_cpu = perf_counter(), process_time()
            store.write(pending)
            spent += perf_counter() - began
            spent_cpu += process_time() - began_cpu
            pending = []
    memory = rss_mib() - before
    store.close()
    return {
        "us_per_unit": round(spent / units * 1e6, 2),
        "cpu_us_per_unit": round(spent_cpu / units * 1e6, 2),
        "anonymous_mib": round(memory),
        "peak_mib": round(rss_mib(peak=True)),
        "disk_mib": round(sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file()) / 2**20),
    }


def _open(engine: str, path: Path, queues: int) -> dict[str, float]:
    before = rss_mib()
    began = perf_counter()
    store = ENGINES[engine](path)
    opened = perf_counter()
    draw = random.Random(2)
    reads = 20_000
    for _ in range(reads):
        assert store.end(draw.randrange(queues)) >= 0
    ended = perf_counter()
    return {
        "open_ms": round((opened - began) * 1000, 1),
        "us_per_lookup": round((ended - opened) / reads * 1e6, 1),
        "anonymous_mib_after_lookups": round(rss_mib() - before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--open", type=Path, help="internal: measure the start in this directory")
    options = parser.parse_args()
    if options.open is not None:
        print(json.dumps(_open(options.engine, options.open, options.queues)))
        return
    directory = Path(tempfile.mkdtemp(prefix="light-queue-engines"))
    try:
        path = directory / "store"
        path.mkdir()
        written = _write(options.engine, path, options.queues, options.units, options.batch)
        command = [sys.executable, __file__, options.engine, f"--queues={options.queues}", f"--open={path}"]
        opened = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(json.dumps({"engine": options.engine, "batch": options.batch, **written, **opened}))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
