"""SqliteStore: the state of one controller in a file of its machine (SQLite), for development and small clusters.

What `commit` has answered is on the disk (WAL, synchronous=FULL: an fsync for each transaction); changes that come
together are one transaction. The file is locked while a controller uses it: a second one is refused. Each start is a
new term all the same: a write of an earlier process, wherever it comes from, compares the wrong one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from gantrymq.background.jobs import Jobs
from gantrymq.background.shared import own_copy
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError
from gantrymq.system import files

T = TypeVar("T")

FILE_NAME = "controller.db"
#: Of the tables below; another version's file is refused, not guessed at.
_VERSION = 1
_TABLES = (
    "CREATE TABLE leader (one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL, id TEXT, address TEXT)",
    "INSERT INTO leader VALUES (1, 0, NULL, NULL)",
    "CREATE TABLE broker_sets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)


class _Change(NamedTuple):
    term: int
    name: str
    value: bytes
    done: asyncio.Future[bool]


class SqliteStore:
    """A StateStore in a directory, which is made if it isn't there."""

    interval_s = inf

    def __init__(self, directory: Path, jobs: Jobs) -> None:
        self._path = directory / FILE_NAME
        self._db: sqlite3.Connection | None = None
        #: One thread at a time works with it.
        self._lock = asyncio.Lock()
        self._waiting: deque[_Change] = deque()
        self._writing = jobs.repeating("write the controller's state", self._write, after_error_s=0.0)

    async def open(self) -> None:
        """Raises GantryError when the file can't be used, or another controller uses it."""
        await self._in_thread(self._open)
        self._writing.start()

    async def close(self) -> None:
        while self._waiting:
            await asyncio.wait([self._waiting[-1].done])
        await self._writing.stop()
        await self._in_thread(self._close)

    async def campaign(self, me: Leader) -> Term | None:
        return Term(await self._run(lambda db: _next_term(db, me)), inf)

    async def keep(self, term: Term) -> Term | None:
        return term

    async def resign(self, term: Term) -> None:
        pass

    async def leader(self) -> Leader | None:
        row = await self._run(lambda db: db.execute("SELECT id, address FROM leader").fetchone())
        return Leader(*row) if row[0] is not None else None

    async def load(self) -> dict[str, bytes]:
        return dict(await self._run(lambda db: db.execute("SELECT name, value FROM broker_sets").fetchall()))

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Change(term.number, name, value, done))
        self._writing.wake()
        return await done

    async def _write(self) -> float | None:
        """All that waits in one transaction."""
        changes = list(self._waiting)
        if not changes:
            return None
        try:
            results = await self._run(lambda db: _commit(db, changes))
        except GantryError as e:
            for _ in changes:
                _, _, _, done = self._waiting.popleft()
                if not done.done():
                    done.set_exception(own_copy(e))
            raise
        for is_kept in results:
            _, _, _, done = self._waiting.popleft()
            if not done.done():
                done.set_result(is_kept)
        return 0.0 if self._waiting else None

    # -- in a thread --------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns, in a thread; a caller that is cancelled waits until it has ended."""

        def run() -> T:
            assert self._db is not None, "the store isn't open"
            try:
                return work(self._db)
            except (sqlite3.Error, OSError) as e:
                raise GantryError(f"the controller's state in {self._path} can't be read or written: {e}") from e

        return await self._in_thread(run)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._lock:
            future = asyncio.get_running_loop().run_in_executor(None, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await asyncio.wait([future])
                raise

    def _open(self) -> None:
        if self._db is not None:
            return
        try:
            files.make_lasting_directory(self._path.parent)
            self._db = _connect(self._path)
        except (sqlite3.Error, OSError) as e:
            used = " (another controller uses it)" if "locked" in str(e) else ""
            raise GantryError(f"the controller's state in {self._path} can't be used: {e}{used}") from e

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _connect(path: Path) -> sqlite3.Connection:
    # Transactions are begun and ended here, not by the module.
    db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        # From here on the file is locked.
        db.execute("BEGIN IMMEDIATE")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, this is {_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def _next_term(db: sqlite3.Connection, me: Leader) -> int:
    db.execute("UPDATE leader SET term = term + 1, id = ?, address = ?", (me.controller_id, me.address))
    (term,) = db.execute("SELECT term FROM leader").fetchone()
    return int(term)


def _commit(db: sqlite3.Connection, changes: Sequence[_Change]) -> list[bool]:
    """Which of them are of the term that is; those are kept, all or, with an exception, perhaps none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        (term,) = db.execute("SELECT term FROM leader").fetchone()
        kept = [change.term == term for change in changes]
        for change, is_kept in zip(changes, kept, strict=True):
            if is_kept:
                db.execute("INSERT OR REPLACE INTO broker_sets VALUES (?, ?)", (change.name, change.value))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return kept
