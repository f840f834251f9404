"""The database of light queues' units: lookups, and flushes to disk outside of the broker's thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from time import thread_time

import pytest

from gantrymq.errors import StoreError
from gantrymq.store.light.unit_database import UnitDatabase


@pytest.fixture
def database(tmp_path: Path) -> Iterator[UnitDatabase]:
    database = UnitDatabase(tmp_path)
    assert database.open() == 0
    yield database
    database.close()


def test_first_offset(database: UnitDatabase) -> None:
    offsets = [3, 4, 5, 9, 10, 1 << 40, (1 << 62) - 1, 1 << 62]
    units = [(1, offset, 100 * n, 100, 0) for n, offset in enumerate(offsets)]
    database.commit([(1, "%LMQ%a"), (2, "%LMQ%b")], units, 800)
    for physical_offset in range(0, 801, 50):
        expected = [offset for _, offset, at, _, _ in units if at >= physical_offset]
        assert database.first_offset(1, physical_offset) == (expected[0] if expected else None)
    assert database.first_offset(2, 0) is None


def test_first_offset_needs_no_scan(database: UnitDatabase) -> None:
    count = 200_000
    database.commit([(1, "%LMQ%a")], [(1, n, 100 * n, 100, 0) for n in range(count)], 100 * count)
    seconds = []
    for _ in range(5):
        began = thread_time()
        assert database.first_offset(1, 100 * count - 1000) == count - 10
        seconds.append(thread_time() - began)
    # A scan takes 40 ms, the search 0.3 ms.
    assert min(seconds) < 0.005


def test_commits_do_not_flush(database: UnitDatabase) -> None:
    size = database.path.stat().st_size
    for n in range(40):
        assert not database.must_checkpoint
        units = [(500 * n + m + 1, 0, 500 * n + m, 1, 0) for m in range(500)]
        database.commit([], units, 500 * n)
    assert database.path.stat().st_size == size
    assert database.must_checkpoint
    database.checkpoint()
    assert not database.must_checkpoint
    assert database.path.stat().st_size > size
    # The write-ahead log starts from the beginning.
    wal = database.path.with_name("units.db-wal")
    size = wal.stat().st_size
    for n in range(40, 79):
        database.commit([], [(500 * n + m + 1, 0, 500 * n + m, 1, 0) for m in range(500)], 500 * n)
    assert wal.stat().st_size <= size * 1.5


def test_a_checkpoint_ends_before_its_connection_is_closed(tmp_path: Path) -> None:
    """A broker closes a database that it has to build anew. SQLite ends the process if a statement still runs."""
    database = UnitDatabase(tmp_path)
    has_ended = Event()
    problems: list[StoreError] = []

    def move_pages() -> None:
        while not has_ended.is_set():
            try:
                database.checkpoint()
            except StoreError as e:
                problems.append(e)

    mover = Thread(target=move_pages)
    mover.start()
    try:
        for _ in range(60):
            assert database.open() == 0
            database.commit([(n, f"%LMQ%{n}") for n in range(100)], [(n, 0, n, 100, 0) for n in range(100)], 1)
            database.discard()
    finally:
        has_ended.set()
        mover.join()
    assert not problems[:3]
