"""Stores the state of one controller in a SQLite file, for development and small clusters.

- When `commit` returns, the change is on the disk (WAL, synchronous=FULL: one fsync for each transaction). Changes that
  arrive together are one transaction.
- The file is locked while a controller uses it, so a second controller gets an error. Nevertheless, each start is a new
  term, so that a write of an earlier process fails: its term is outdated.
- `open` checks the whole file and refuses one that is damaged, empty or without tables. A controller with an empty
  state would assign the same broker ids and epochs again. A marker file exists during the first start, so that an
  incomplete file does not count as damaged after a crash.
- A backup is written after the check, after changes, and by `close`. A damaged file therefore never replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from gantrymq.background.jobs import Jobs
from gantrymq.background.shared_task import own_copy
from gantrymq.config import replace_file
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError
from gantrymq.system import files
from gantrymq.system.clock import monotonic

T = TypeVar("T")
#: Raises GantryError if a value is not a valid broker set with this name.
CheckValue = Callable[[str, bytes], None]

log = logging.getLogger(__name__)

FILE_NAME = "controller.db"
BACKUP_NAME = "controller.db.bak"
#: Shortest interval between two backups, in seconds. Each backup reads the whole state.
BACKUP_INTERVAL_S = 10.0
#: Version of the tables below. A file of another version is refused.
_VERSION = 1
_TABLE_NAMES = {"leader", "broker_sets"}
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


class _Damaged(Exception):
    """Raised if the file is not one that a controller has written."""


class SqliteStore:
    """A StateStore in a directory, which is created if it doesn't exist. `open` checks values with `check_value`."""

    interval_s = inf

    def __init__(self, directory: Path, jobs: Jobs, check_value: CheckValue) -> None:
        self._path = directory / FILE_NAME
        self._backup = directory / BACKUP_NAME
        #: Exists while the database file is being created.
        self._marker = directory / f"{FILE_NAME}.new"
        self._check_value = check_value
        self._db: sqlite3.Connection | None = None
        #: Only one thread at a time may use the database.
        self._lock = asyncio.Lock()
        self._waiting: deque[_Change] = deque()
        self._writing = jobs.repeating("write the controller's state", self._write, after_error_s=0.0)
        self._is_backed_up = False
        self._backed_up_at = -inf
        self._backing_up = jobs.repeating("back up the controller's state", self._back_up)

    async def open(self) -> None:
        """Opens the file. Raises GantryError if it is damaged or not usable, or if another controller uses it."""
        await self._in_thread(self._open)
        self._writing.start()
        self._backing_up.start(0.0)

    async def close(self) -> None:
        while self._waiting:
            await asyncio.wait([self._waiting[-1].done])
        await self._writing.stop()
        await self._backing_up.stop()
        if self._db is not None and not self._is_backed_up:
            try:
                await self._back_up()
            except GantryError as e:
                log.warning("the backup is older than the controller's state: %s", e)
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
        """Writes all pending changes in one transaction."""
        changes = list(self._waiting)
        if not changes:
            return None
        self._is_backed_up = False
        try:
            results = await self._run(lambda db: _commit(db, changes))
        except GantryError as e:
            for _ in changes:
                _, _, _, done = self._waiting.popleft()
                if not done.done():
                    done.set_exception(own_copy(e))
            raise
        self._backing_up.wake(max(self._backed_up_at + BACKUP_INTERVAL_S - monotonic(), 0.0))
        for is_kept in results:
            _, _, _, done = self._waiting.popleft()
            if not done.done():
                done.set_result(is_kept)
        return 0.0 if self._waiting else None

    async def _back_up(self) -> None:
        if self._is_backed_up:
            return
        # The backup may lack changes that are committed after this line.
        self._is_backed_up, self._backed_up_at = True, monotonic()
        try:
            await self._run(lambda db: _back_up(db, self._backup))
        except BaseException:
            self._is_backed_up = False
            raise

    # -- in a thread --------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a thread and returns its result. A cancelled caller waits until the thread has ended."""

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
            self._check_files()
            self._db = _connect(self._path, self._check_value, is_new=files.exists(self._marker))
            files.unlink(self._marker, missing_ok=True)
        except (_Damaged, sqlite3.Error, OSError) as e:
            # SQLite raises DatabaseError itself for a damaged file, and its subclasses for other problems.
            if isinstance(e, _Damaged) or type(e) is sqlite3.DatabaseError:
                raise GantryError(f"the controller's state in {self._path} is damaged: {e}; {self._remedy()}") from e
            used = " (another controller uses it)" if "locked" in str(e) else ""
            raise GantryError(f"the controller's state in {self._path} can't be used: {e}{used}") from e

    def _check_files(self) -> None:
        """Raises _Damaged if SQLite would create a new database in place of an existing one."""
        if files.exists(self._marker):
            return
        if files.exists(self._path):
            if not files.stat(self._path).st_size:
                raise _Damaged("the file is empty")
            return
        for other in (self._backup, self._path.with_name(f"{FILE_NAME}-wal")):
            if files.exists(other):
                raise _Damaged(f"the file is missing, while {other.name} exists")
        files.write(self._marker, b"")

    def _remedy(self) -> str:
        move = f"move {FILE_NAME} and {FILE_NAME}-wal to another directory"
        if files.exists(self._backup):
            return (
                f"to restore the last backup, {move} and copy {BACKUP_NAME} to {FILE_NAME}; "
                f"to begin without state, {move} with {BACKUP_NAME}"
            )
        return f"there is no backup: restore a copy of your own, or {move} to begin without state"

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _connect(path: Path, check_value: CheckValue, *, is_new: bool) -> sqlite3.Connection:
    # With this isolation level, the module `sqlite3` does not begin or end transactions itself.
    db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        # After this statement the file is locked.
        db.execute("BEGIN IMMEDIATE")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0 and is_new:
            for statement in _TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version == 0:
            raise _Damaged("it has no tables of a controller")
        elif version != _VERSION:
            raise sqlite3.NotSupportedError(f"it is of version {version}, this is {_VERSION}")
        _check(db, check_value)
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, check_value: CheckValue) -> None:
    """Raises _Damaged if the content can't have been written by a controller."""
    (result,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise _Damaged(result)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := sorted(_TABLE_NAMES - tables):
        raise _Damaged(f"it has no table {missing[0]}")
    leaders = db.execute("SELECT term, id, address FROM leader").fetchall()
    if len(leaders) != 1:
        raise _Damaged(f"it has {len(leaders)} leaders, not one")
    term, *names = leaders[0]
    if not isinstance(term, int) or term < 0 or not all(name is None or isinstance(name, str) for name in names):
        raise _Damaged(f"its leader is {leaders[0]}")
    for name, value in db.execute("SELECT name, value FROM broker_sets"):
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise _Damaged(f"the broker set {name!r} is no bytes")
        try:
            check_value(name, value)
        except GantryError as e:
            raise _Damaged(f"the broker set {name!r}: {e}") from e


def _back_up(db: sqlite3.Connection, path: Path) -> None:
    new = path.with_name(f"{path.name}.new")
    files.unlink(new, missing_ok=True)
    copy = sqlite3.connect(new)
    try:
        db.backup(copy)
    finally:
        copy.close()
    replace_file(path, files.read_bytes(new))
    files.unlink(new)


def _next_term(db: sqlite3.Connection, me: Leader) -> int:
    db.execute("UPDATE leader SET term = term + 1, id = ?, address = ?", (me.controller_id, me.address))
    (term,) = db.execute("SELECT term FROM leader").fetchone()
    return int(term)


def _commit(db: sqlite3.Connection, changes: Sequence[_Change]) -> list[bool]:
    """Stores the changes of the current term, all or none. Returns for each change whether it was stored."""
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
