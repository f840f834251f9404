"""Units of light queues on the simulated disk.

SQLite would use the real disk. Here, each transaction replaces one file of the simulated disk, as a whole. A power
failure can therefore damage it, other than with SQLite; the broker then builds it anew from its log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from gantrymq.errors import StoreError
from gantrymq.store.light import unit_database
from gantrymq.store.light.unit_database import UnitDatabase
from gantrymq.system import files


class SimUnitDatabase(UnitDatabase):
    """A database in memory, whose content is in a file after each transaction."""

    _saved = b""

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        if self._connection is None:
            self._saved = b""
            try:
                if files.exists(self.path):
                    self._saved = files.read_bytes(self.path)
            except OSError as e:
                raise StoreError(f"can't read {self.path}: {e}") from e
            if self._saved:
                connection.deserialize(self._saved)
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with super()._transaction() as writer:
            yield writer
        content = writer.serialize()
        beside = self.path.with_name(self.path.name + ".new")
        try:
            files.write(beside, content)
            files.rename(beside, self.path)
        except OSError as e:
            if self._saved:
                writer.deserialize(self._saved)
            else:
                self.discard()
            raise StoreError(f"can't write {self.path}: {e}") from e
        self._saved = content

    def checkpoint(self) -> None:
        """Flushes the file to the disk."""
        written = self._written
        if self._connection is None or written == self._moved:
            return
        try:
            for path, sync in ((self.path, files.fsync), (self.path.parent, files.sync_entries)):
                fd = files.open(path, os.O_RDONLY)
                try:
                    sync(fd)
                finally:
                    files.close(fd)
        except OSError as e:
            raise StoreError(f"can't flush {self.path}: {e}") from e
        self._moved = written


def install() -> None:
    """Makes all stores use this database."""
    vars(unit_database)["UnitDatabase"] = SimUnitDatabase
