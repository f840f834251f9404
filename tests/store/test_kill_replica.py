"""SIGKILL of a slave at random moments while it copies, truncates, or restarts its log.

Afterwards its log is the beginning of its master's log. It is at least as long as reported, and the queues match it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery, nursery
from replica_support import assert_equal, follow, log_bytes, open_slave, queues_of, write_without_deleting
from store_support import open_store, read_all

from gantrymq.store.verify import verify

ROUNDS = 30
ROUNDS_PER_STORE = 6

SLAVE = """
import os, random
from pathlib import Path
from replica_support import append, open_slave
from store_support import LOG_FILE

def write(fd, root, log, seed):
    rng = random.Random(seed)
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
"""


@pytest.fixture
def slaves() -> Iterator[Nursery]:
    with nursery(SLAVE, Path(__file__).parent) as slaves:
        yield slaves


def test_what_a_slave_has_is_its_masters(slaves: Nursery, tmp_path: Path) -> None:
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
        # Mostly in the middle of the work, so that the kills leave many different logs.
        count = rng.choice((0, 1, *(rng.randrange(150) for _ in range(4))))
        lines = slaves.run_and_kill(tmp_path / f"fifo{number}", count, root, tmp_path / "log", rng.randrange(1 << 32))
        reported = int(lines[-1]) if lines else 0
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
