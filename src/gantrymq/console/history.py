"""The history of the cluster in SQLite: samples every 15 s and rebalances of groups, with a size limit.

Resolution by age:

    15 s for a day, 1 min for two weeks, 15 min for two months

A series has a name, such as `in`, `broker/NAME/disk` or `group/NAME/lag`, and a value for each time. Older values
are averages of 1 min, then of 15 min. If the file exceeds its limit, the oldest tenth is deleted.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gantrymq.console.private_files import make_private_file
from gantrymq.errors import GantryError

T = TypeVar("T")

FILE_NAME = "history.db"
SAMPLE_S = 15
#: (resolution, maximum age, resolution after that), s. Resolution 0 means that the values are deleted.
_AGES = ((15, 86400, 60), (60, 14 * 86400, 900), (900, 62 * 86400, 0))
MAX_BYTES = 256 * 1024 * 1024
#: Largest number of points of a chart.
MAX_POINTS = 360
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS samples (
    resolution INTEGER NOT NULL, series INTEGER NOT NULL, at INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (series, resolution, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON samples (resolution, at);
CREATE TABLE IF NOT EXISTS rebalances (
    id INTEGER PRIMARY KEY, consumers TEXT NOT NULL, at INTEGER NOT NULL, came TEXT NOT NULL, left TEXT NOT NULL,
    members INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS of_group ON rebalances (consumers, id);
"""
#: Largest number of rebalances of all groups. Older rebalances are deleted.
MAX_REBALANCES = 20_000
_MAX_NAMES = 20
_IN_MEMORY = ":memory:"


class Points(msgspec.Struct):
    """The points of several series: `times` in s since 1970, and `values` by name. A value is None without a sample."""

    times: list[int]
    values: dict[str, list[float | None]]


class Rebalance(msgspec.Struct):
    """Members that joined and left a group, detected at `at_ms`. `members` is the new number of members."""

    at_ms: int
    came: list[str]
    left: list[str]
    members: int


class History:
    """The history, in a file in `directory`, or in memory without one. After `close`, all methods raise GantryError."""

    def __init__(self, directory: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self._path = _IN_MEMORY if directory is None else str(directory / FILE_NAME)
        self._max_bytes = max_bytes
        self._db: sqlite3.Connection | None = None
        self._ids: dict[str, int] = {}
        self._is_closed = False
        #: Only one thread at a time uses the database, even if the caller of an earlier thread was cancelled.
        self._lock = threading.Lock()

    async def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Adds the samples of one time. Raises GantryError if the file cannot be written."""
        await self._run(lambda db: self._add(db, int(at_s) // SAMPLE_S * SAMPLE_S, values))

    async def thin(self, now_s: float) -> None:
        """Averages and deletes old samples. Raises GantryError if the file cannot be written."""
        await self._run(lambda db: self._thin(db, int(now_s)))

    async def points(self, names: Sequence[str], begin_s: float, end_s: float) -> Points:
        """Returns the series from `begin_s` to `end_s`, with at most MAX_POINTS points.

        Raises GantryError if the file cannot be read.
        """
        return await self._run(lambda db: self._points(db, names, int(begin_s), int(end_s)))

    async def add_rebalances(self, changes: Mapping[str, Rebalance]) -> None:
        """Adds rebalances by group. Raises GantryError if the file cannot be written."""
        await self._run(lambda db: self._add_rebalances(db, changes))

    async def rebalances(self, group: str, limit: int) -> list[Rebalance]:
        """Returns the last rebalances of a group, newest first. Raises GantryError if the file cannot be read."""
        return await self._run(lambda db: self._rebalances(db, group, limit))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._db is not None:
                self._db.close()
                self._db = None

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, self._locked, work)

    def _locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._is_closed:
                raise GantryError("the history is closed")
            return self._work(work)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction. Opens the database before the first transaction."""
        try:
            if self._db is None:
                if self._path != _IN_MEMORY:
                    # SQLite creates its other files with the same permissions.
                    make_private_file(Path(self._path))
                db = sqlite3.connect(self._path, check_same_thread=False, timeout=5.0)
                db.executescript(_TABLES)
                self._ids = dict(db.execute("SELECT name, id FROM series"))
                self._db = db
            with self._db:
                return work(self._db)
        except (sqlite3.Error, OSError) as e:
            # After a failed transaction, the names that it added have no ids.
            self._ids = {}
            raise GantryError(f"the history {self._path}: {e}") from e

    def _id(self, db: sqlite3.Connection, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            db.execute("INSERT OR IGNORE INTO series (name) VALUES (?)", (name,))
            ((found,),) = db.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchall()
            self._ids[name] = found
        return found

    def _add(self, db: sqlite3.Connection, at: int, values: Mapping[str, float]) -> None:
        rows = [(SAMPLE_S, self._id(db, name), at, value) for name, value in values.items()]
        db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?)", rows)

    def _add_rebalances(self, db: sqlite3.Connection, changes: Mapping[str, Rebalance]) -> None:
        # Store only a few names, because thousands of members can join at once.
        rows = [
            (group, one.at_ms, "\n".join(one.came[:_MAX_NAMES]), "\n".join(one.left[:_MAX_NAMES]), one.members)
            for group, one in changes.items()
        ]
        db.executemany("INSERT INTO rebalances (consumers, at, came, left, members) VALUES (?, ?, ?, ?, ?)", rows)
        db.execute("DELETE FROM rebalances WHERE id <= (SELECT MAX(id) FROM rebalances) - ?", (MAX_REBALANCES,))

    def _rebalances(self, db: sqlite3.Connection, group: str, limit: int) -> list[Rebalance]:
        rows = db.execute(
            "SELECT at, came, left, members FROM rebalances WHERE consumers = ? ORDER BY id DESC LIMIT ?",
            (group, limit),
        )
        return [
            Rebalance(at, came.split("\n") if came else [], left.split("\n") if left else [], members)
            for at, came, left, members in rows
        ]

    def _thin(self, db: sqlite3.Connection, now: int) -> None:
        """Averages samples by _AGES. If the file is still too large, deletes the oldest samples."""
        for resolution, age, coarser in _AGES:
            # A multiple of 15 min, so that each average covers its whole period.
            before = (now - age) // 900 * 900
            if coarser:
                db.execute(
                    "INSERT OR REPLACE INTO samples SELECT ?, series, at / ? * ?, AVG(value) FROM samples "
                    "WHERE resolution = ? AND at < ? GROUP BY series, at / ?",
                    (coarser, coarser, coarser, resolution, before, coarser),
                )
            db.execute("DELETE FROM samples WHERE resolution = ? AND at < ?", (resolution, before))
        if self._used(db) > self._max_bytes:
            first, last = db.execute("SELECT MIN(at), MAX(at) FROM samples").fetchone()
            while self._used(db) > 0.9 * self._max_bytes and first is not None and first < last:
                first += max((last - first) // 10, 1)
                db.execute("DELETE FROM samples WHERE at < ?", (first,))
        db.execute("DELETE FROM rebalances WHERE at < ?", ((now - _AGES[-1][1]) * 1000,))
        db.execute("DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM samples)")
        self._ids = dict(db.execute("SELECT name, id FROM series"))

    def _used(self, db: sqlite3.Connection) -> int:
        """Returns the size of the used pages, bytes. SQLite fills free pages before the file grows."""
        (pages,), (free,), (size,) = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _points(self, db: sqlite3.Connection, names: Sequence[str], begin: int, end: int) -> Points:
        step = max(SAMPLE_S, -(-(end - begin) // MAX_POINTS) // SAMPLE_S * SAMPLE_S)
        # Older values have a coarser resolution, so their points are further apart.
        of_names = {}
        for name in names:
            found = self._ids.get(name)
            of_names[name] = dict(
                db.execute(
                    "SELECT at / ? * ?, AVG(value) FROM samples "
                    "WHERE series = ? AND at >= ? AND at <= ? GROUP BY at / ?",
                    (step, step, found, begin, end, step),
                )
                if found is not None
                else ()
            )
        times = sorted({time for values in of_names.values() for time in values})
        return Points(times, {name: [values.get(time) for time in times] for name, values in of_names.items()})
