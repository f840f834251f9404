"""The units of all light queues, in a SQLite database in WAL mode.

    queue  id, name, next_offset
    unit   id, queue, queue_offset, physical_offset, size, tags_code
    state  position

The ids of units ascend with the physical offsets, so that expired units are the first rows, and lost ones the last. An
index finds the units of a queue. The next offset of a queue follows from its last unit. Only if all its units have
expired, `next_offset` has it. All units of records before the physical offset `position` are in the database.

Transactions are not flushed to disk: `checkpoint` does that, in a thread. A power failure can lose the transactions
after the last checkpoint, but it can't damage the database. SQLite's own checkpoints are off, because they would wait
for the disk in the thread that commits. `must_checkpoint` limits the write-ahead log instead.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.consume_queue import Unit
from gantrymq.system import files, threads

log = logging.getLogger(__name__)

_VERSION = 1
_TABLES = """
CREATE TABLE queue (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, next_offset INTEGER NOT NULL DEFAULT 0);
CREATE TABLE unit (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    queue_offset INTEGER NOT NULL,
    physical_offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    tags_code INTEGER NOT NULL
);
CREATE UNIQUE INDEX unit_of_queue ON unit (queue, queue_offset);
CREATE TABLE state (position INTEGER NOT NULL);
INSERT INTO state VALUES (0);
"""
#: Page cache of a connection, in KiB. It has the inner pages of the index for tens of millions of units.
_CACHE_KIB = 32 * 1024
#: Number of rows after which `must_checkpoint` is true. If each row changes a page of its own, the write-ahead log has
#: about 160 MB then.
_MOST_UNMOVED = 20_000
#: Number of attempts of `checkpoint` to move all pages while commits go on.
_ATTEMPTS = 5
#: Number of expired units that one transaction deletes. It takes about 5 ms.
_EXPIRED_AT_ONCE = 1000
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
#: The lowest byte of an extended error code is the primary code.
_PRIMARY_CODE = 0xFF


#: Id of the queue, queue offset, physical offset, size, tags code.
NewUnit = tuple[int, int, int, int, int]


class UnitDatabase:
    """The database in `directory`. `checkpoint` may be called in another thread.

    Every method raises StoreError if the database can't be used. If it is damaged, it is deleted, and the next `open`
    creates an empty one.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "units.db"
        self._connection: sqlite3.Connection | None = None
        self._checkpointer: sqlite3.Connection | None = None
        #: Number of rows that were written, and of those that the last complete checkpoint moved. Each is set by one
        #: thread only.
        self._written = self._moved = 0
        #: Whether the content is damaged. The database is deleted then, and the next `open` begins an empty one.
        self.is_damaged = False
        #: Held while a thread writes.
        self._writing = threads.Lock()
        #: Held while a thread uses the checkpointer. SQLite crashes if another thread closes it while a statement runs.
        self._checkpointing = threads.Lock()

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def open(self) -> int:
        """Opens or creates the database. Returns its position. A damaged database is replaced by an empty one."""
        try:
            files.make_directory(self.path.parent)
        except OSError as e:
            raise StoreError(f"can't create {self.path.parent}: {e}") from e
        try:
            return self._open()
        except (sqlite3.DatabaseError, StoreError) as e:
            if isinstance(e, sqlite3.OperationalError) and not _is_damaged(e):
                raise StoreError(f"can't open {self.path}: {e}") from e
            log.warning("%s is unusable, and is built anew from the log: %s", self.path, e)
        self.discard()
        with self._errors():
            return self._open()

    def _open(self) -> int:
        self.close()
        self._written = self._moved = 0
        self.is_damaged = False
        self._connection = connection = self._connect()
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise StoreError(f"its version is {version} instead of {_VERSION}")
        self._checkpointer = self._connect()
        return int(connection.execute("SELECT position FROM state").fetchone()[0])

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
        settings = (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "wal_autocheckpoint = 0",
            f"cache_size = -{_CACHE_KIB}",
        )
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")
        return connection

    def close(self) -> None:
        """Closes the database. Interrupts a running checkpoint of another thread, and waits until it ends."""
        checkpointer, self._checkpointer = self._checkpointer, None
        connection, self._connection = self._connection, None
        if checkpointer is not None:
            checkpointer.interrupt()
            with self._checkpointing, suppress(sqlite3.Error):
                checkpointer.close()
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def discard(self) -> None:
        """Closes the database and deletes its files."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError), self._errors():
                files.unlink(self.path.with_name(self.path.name + suffix))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            if _is_damaged(e):
                self.is_damaged = True
                with suppress(OSError):
                    files.unlink(self.path)
                raise StoreError(f"{self.path} is damaged, and is rebuilt from the log: {e}") from e
            raise StoreError(f"can't use {self.path}: {e}") from e

    def _read(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError("the store is closed")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        writer = self._read()
        with self._writing, self._errors():
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    writer.execute("ROLLBACK")
                raise

    # -- reading ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> tuple[int, int] | None:
        """Returns the id and the next offset of a queue, or None if it doesn't exist."""
        with self._errors():
            found = self._read().execute(
                "SELECT id, max(next_offset, coalesce((SELECT max(queue_offset) + 1 FROM unit "
                "WHERE unit.queue = queue.id), 0)) FROM queue WHERE name = ?",
                (name,),
            )
            row: tuple[int, int] | None = found.fetchone()
        return row

    def units(self, queue: int, offset: int, end: int) -> list[tuple[int, *Unit]]:
        """Returns the units of a queue from a queue offset up to `end`, each with its queue offset."""
        with self._errors():
            return (
                self._read()
                .execute(
                    "SELECT queue_offset, physical_offset, size, tags_code FROM unit "
                    "WHERE queue = ? AND queue_offset >= ? AND queue_offset < ? ORDER BY queue_offset",
                    (queue, offset, end),
                )
                .fetchall()
            )

    def first_offset(self, queue: int, physical_offset: int) -> int | None:
        """Returns the queue offset of a queue's first unit at or after a physical offset, or None.

        Physical offsets ascend with the queue offsets, so this needs no scan of the expired units.
        """
        first = self._next_unit(queue, 0)
        if first is None or first[1] >= physical_offset:
            return None if first is None else first[0]
        with self._errors():
            last, last_place = (
                self._read()
                .execute(
                    "SELECT queue_offset, physical_offset FROM unit WHERE queue = ? ORDER BY queue_offset DESC LIMIT 1",
                    (queue,),
                )
                .fetchone()
            )
        if last_place < physical_offset:
            return None
        low, high = first[0] + 1, last + 1
        found = None
        while low < high:
            middle = (low + high) // 2
            unit = self._next_unit(queue, middle)
            assert unit is not None, "the last unit is at or after the middle"
            if unit[1] < physical_offset:
                low = unit[0] + 1
            else:
                found = unit[0]
                high = middle
        return found

    def _next_unit(self, queue: int, offset: int) -> tuple[int, int] | None:
        """Returns queue offset and physical offset of a queue's first unit from a queue offset on, or None."""
        with self._errors():
            row: tuple[int, int] | None = (
                self._read()
                .execute(
                    "SELECT queue_offset, physical_offset FROM unit WHERE queue = ? AND queue_offset >= ? "
                    "ORDER BY queue_offset LIMIT 1",
                    (queue, offset),
                )
                .fetchone()
            )
        return row

    def next_offset(self, queue: int, offset: int) -> int | None:
        """Returns the queue offset of a queue's first unit from a queue offset on, or None."""
        unit = self._next_unit(queue, offset)
        return None if unit is None else unit[0]

    def last_unit(self) -> tuple[str, int, int] | None:
        """Returns queue name, queue offset and physical offset of the last unit, or None if there is none."""
        with self._errors():
            row: tuple[str, int, int] | None = (
                self._read()
                .execute(
                    "SELECT name, queue_offset, physical_offset FROM unit JOIN queue ON queue.id = unit.queue "
                    "ORDER BY unit.id DESC LIMIT 1"
                )
                .fetchone()
            )
        return row

    def last_places(self, prefix: str, after: str, most: int) -> list[tuple[str, int]]:
        """Returns the names of the next queues and the physical offset of the last unit of each; -1 without units.

        Only names with `prefix` that come after the name `after` are read, at most `most`.
        """
        with self._errors():
            rows: list[tuple[str, int]] = (
                self._read()
                .execute(
                    "SELECT name, coalesce((SELECT physical_offset FROM unit WHERE unit.queue = queue.id "
                    "ORDER BY queue_offset DESC LIMIT 1), -1) FROM queue WHERE name > ? AND name >= ? AND name < ? "
                    "ORDER BY name LIMIT ?",
                    (after, prefix, _after_prefix(prefix), most),
                )
                .fetchall()
            )
        return rows

    def count(self, prefix: str = "") -> int:
        """Returns the number of queues whose names begin with `prefix`."""
        with self._errors():
            return int(
                self._read()
                .execute("SELECT count(*) FROM queue WHERE name >= ? AND name < ?", (prefix, _after_prefix(prefix)))
                .fetchone()[0]
            )

    @property
    def largest_queue_id(self) -> int:
        """The largest id of a queue; 0 if there is none."""
        with self._errors():
            return int(self._read().execute("SELECT coalesce(max(id), 0) FROM queue").fetchone()[0])

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def must_checkpoint(self) -> bool:
        """Whether no more should be written now: the write-ahead log is large, or `checkpoint` starts a new one."""
        return self._written - self._moved > _MOST_UNMOVED or self._writing.locked()

    def commit(self, names: Sequence[tuple[int, str]], units: Sequence[NewUnit], position: int) -> None:
        """Adds queues (id, name) and units, and sets the position, all in one transaction."""
        with self._transaction() as writer:
            writer.executemany("INSERT INTO queue (id, name) VALUES (?, ?)", names)
            writer.executemany(
                "INSERT INTO unit (queue, queue_offset, physical_offset, size, tags_code) VALUES (?, ?, ?, ?, ?)", units
            )
            writer.execute("UPDATE state SET position = ?", (position,))
        self._written += len(names) + len(units) + 1

    def expire(self, physical_offset: int) -> bool:
        """Deletes some units of records before a physical offset. Returns whether there may be more."""
        with self._errors():
            last, count = (
                self._read()
                .execute(
                    "SELECT max(id), count(*) FROM (SELECT id, physical_offset FROM unit ORDER BY id LIMIT ?) "
                    "WHERE physical_offset < ?",
                    (_EXPIRED_AT_ONCE, physical_offset),
                )
                .fetchone()
            )
        if not count:
            return False
        with self._transaction() as writer:
            ends = writer.execute(
                "SELECT max(queue_offset) + 1, queue FROM unit WHERE id <= ? GROUP BY queue", (last,)
            ).fetchall()
            writer.executemany("UPDATE queue SET next_offset = max(next_offset, ?) WHERE id = ?", ends)
            writer.execute("DELETE FROM unit WHERE id <= ?", (last,))
        self._written += int(count)
        return int(count) == _EXPIRED_AT_ONCE

    def checkpoint(self) -> None:
        """Moves the committed transactions from the write-ahead log into the database, and flushes it to disk.

        If all were moved, the write-ahead log starts from the beginning.
        """
        for _ in range(_ATTEMPTS):
            with self._checkpointing:
                connection, written = self._checkpointer, self._written
                if connection is None or written == self._moved:
                    return
                try:
                    with self._errors():
                        if self._move_pages(connection):
                            self._moved = written
                            return
                except StoreError:
                    # `close` has interrupted it.
                    if self._checkpointer is not connection:
                        return
                    raise

    def _move_pages(self, connection: sqlite3.Connection) -> bool:
        """Moves the pages of the write-ahead log into the database. Returns whether no page is left."""
        ((is_busy, pages, moved),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if is_busy or pages != moved:
            return False
        with self._writing:
            # The first transaction of a write-ahead log waits for the disk, here instead of in a commit.
            connection.execute("UPDATE state SET position = position")
        return True

    def cut(self, physical_offset: int) -> set[int]:
        """Deletes the units of records from a physical offset on, and flushes that to disk.

        Returns the ids of their queues.
        """
        with self._transaction() as writer:
            row = writer.execute(
                "SELECT id FROM unit WHERE physical_offset < ? ORDER BY id DESC LIMIT 1", (physical_offset,)
            ).fetchone()
            last = 0 if row is None else row[0]
            queues = {queue for (queue,) in writer.execute("SELECT DISTINCT queue FROM unit WHERE id > ?", (last,))}
            writer.execute("DELETE FROM unit WHERE id > ?", (last,))
            writer.execute("UPDATE state SET position = min(position, ?)", (physical_offset,))
        self._written += 1
        self.checkpoint()
        return queues

    def cut_queue(self, queue: int, offset: int) -> None:
        """Deletes the units of a queue from a queue offset on, which becomes its next offset."""
        with self._transaction() as writer:
            writer.execute("DELETE FROM unit WHERE queue = ? AND queue_offset >= ?", (queue, offset))
            writer.execute("UPDATE queue SET next_offset = min(next_offset, ?) WHERE id = ?", (offset, queue))

    def delete_queue(self, queue: int) -> None:
        """Deletes a queue with its units."""
        with self._transaction() as writer:
            writer.execute("DELETE FROM unit WHERE queue = ?", (queue,))
            writer.execute("DELETE FROM queue WHERE id = ?", (queue,))
        self._written += 1


def _after_prefix(prefix: str) -> str:
    """Returns a text after all names with a prefix. SQLite compares the bytes of UTF-8, as Python's code points."""
    return prefix + "\U0010ffff"


def _is_damaged(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGE
