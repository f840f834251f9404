"""SIGKILL of a slave at random moments, as it takes its master's log, cuts its own, or begins anew.

What it has then is the beginning of its master's log, at least as much as it has reported; its queues fit to it.
Slaves are forked from one process that has imported everything.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_support import assert_equal, follow, log_bytes, open_slave, queues_of, write_without_deleting
from store_support import open_store, read_all

from gantrymq.store.verify import verify

ROUNDS = 30
ROUNDS_PER_STORE = 6

NURSERY = """
import os, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from replica_support import append, open_slave
from store_support import LOG_FILE

def take(root, log, seed, fifo):
    rng = random.Random(seed)
    fd = os.open(fifo, os.O_WRONLY)
    os.write(fd, b"%d\\n" % os.getpid())
    log = Path(log)
    data = log.read_bytes()
    places = [int(place) for place in log.with_suffix(".places").read_text().split()]
    slave = open_slave(Path(root), waits=rng.random() < 0.5, flush_interval_commit_log_ms=rng.choice((1, 5, 500)))
    sizes = rng.choice(((1000, 4000), (32 * 1024,), (1, 100, 20_000)))
    while True:
        at, first, end = slave.replica.received, slave.min_physical_offset, slave.max_physical_offset
        if rng.random() < 0.01:
            os.write(fd, b"0\\n")
            slave.replica.begin_anew(rng.choice((0, 2 * LOG_FILE)))
        elif at == len(data) or rng.random() < 0.03:
            known = [place for place in places if first <= place < end]
            place = rng.choice([first, *(known if at == len(data) else known[-20:])])
            os.write(fd, b"%d\\n" % place)
            slave.replica.truncate(place)
        else:
            append(slave, data[at : at + rng.choice(sizes)])
            os.write(fd, b"%d\\n" % slave.max_physical_offset)
        if rng.random() < 0.1:
            slave.keys.build_index(rng.choice((0, 0.01)))

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            take(*line.split())
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_a_slave_has_is_its_masters(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    master = open_store(tmp_path / "master")
    write_without_deleting(master, rng, 300)
    log, queues = log_bytes(master, 0), queues_of(master)
    (tmp_path / "log").write_bytes(log)
    places = sorted(unit[0] for _, _, units in queues.values() for unit in units)
    (tmp_path / "log.places").write_text(" ".join(str(place) for place in places))
    ends = set()
    for number in range(ROUNDS):
        root = tmp_path / str(number // ROUNDS_PER_STORE)
        reported = run_and_kill(nursery, root, tmp_path / "log", rng, tmp_path / f"fifo{number}")
        slave = open_slave(root)
        first, end = slave.min_physical_offset, slave.max_physical_offset
        ends.add(end)
        assert end >= reported
        assert log_bytes(slave, first) == log[first:end]
        expected = {key: [unit for unit in units if first <= unit[0] < end] for key, (_, _, units) in queues.items()}
        assert {key: found[2] for key, found in queues_of(slave).items() if found[2]} == {
            key: units for key, units in expected.items() if units
        }
        for (topic, queue_id), units in expected.items():
            assert len(read_all(slave, slave.queue(topic, queue_id))) == len(units)
        if number % ROUNDS_PER_STORE == ROUNDS_PER_STORE - 1:
            follow(master, slave, lambda: 50_000)
            assert_equal(master, slave)
        while not slave.keys.build_index(1):
            pass
        slave.close()
        assert verify(slave.config).problems == []
    assert len(ends) > ROUNDS // 4
    master.close()


def run_and_kill(nursery: subprocess.Popen[str], root: Path, log: Path, rng: random.Random, fifo: Path) -> int:
    """Lets a slave take the log until it is killed; up to where it has reported to have it, and keeps it."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    os.mkfifo(fifo)
    print(root, log, rng.randrange(1 << 32), fifo, file=nursery.stdin, flush=True)
    with fifo.open() as reader:
        pid = int(reader.readline())
        lines = []
        try:
            for _ in range(rng.choice((0, 1, rng.randrange(150)))):
                lines.append(reader.readline())
        finally:
            os.kill(pid, signal.SIGKILL)
        lines += reader.readlines()
    assert nursery.stdout.readline() == "ended\n"
    whole = [line for line in lines if line.endswith("\n")]
    return int(whole[-1]) if whole else 0
