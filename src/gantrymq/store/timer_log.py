"""The files in `timerlog/`: an entry for each message on the timer wheel (`store/timer/TimerLog`).

    int32 52 | int64 place of the slot's entry before | int32 magic | int64 time of writing | int32 delay
    | int64 physical offset | int32 size of the record | int32 hash code of the real topic | int64 0

Times are in milliseconds; time of writing + delay is the time of the slot. A place is a position in the log, in bytes
from the start of the first entry ever written. The files have a fixed size and are named after the position of their
first byte. A blank record fills the rest of a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import StoreError, StoreFull
from gantrymq.protocol.record import MAGIC_BLANK
from gantrymq.store.mapped_file import list_files, store_error, sync_directory, sync_file
from gantrymq.system import files

MAGIC_DEFAULT = 1
#: The message is due after the roll window. At the time of this entry, the message is stored again.
MAGIC_ROLL = 2
#: The message cancels another message.
MAGIC_DELETE = 4
_MAGICS = 0xF

_ENTRY = Struct(">iqiqiqiiq")
ENTRY_SIZE = _ENTRY.size
_BLANK = Struct(">iqI")


class TimerEntry(NamedTuple):
    """An entry of the timer log, processed at `slot_ms`. `previous` is -1 at the end of a slot's chain."""

    previous: int
    magic: int
    write_time_ms: int
    slot_ms: int
    physical_offset: int
    size: int
    topic_hash: int

    @property
    def messages(self) -> int:
        """The change of the number of waiting messages: 1, or -1 if the entry cancels another message."""
        return -1 if self.magic & MAGIC_DELETE else 1

    @property
    def is_delete(self) -> bool:
        """Whether the entry cancels another message at its time. A rolled entry first waits again."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE


class TimerLog:
    """The log in `directory`. It accepts entries after `open` and `start_at`."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self._file_size = file_size
        #: Position of the next entry.
        self.position = 0
        #: Descriptors by base offset, in order.
        self._files: dict[int, int] = {}

    def open(self) -> None:
        """Finds the files. Raises StoreError if they can't belong to one log with this file size."""
        lengths = list_files(self.directory)
        expected = min(lengths, default=0)
        for base, length in lengths.items():
            path = self._path(base)
            if length == 0 and base == max(lengths):
                files.unlink(path)
                continue
            if length != self._file_size or base % self._file_size:
                raise StoreError(
                    f"{path} has {length} bytes, mappedFileSizeTimerLog is {self._file_size}: set it to the size that "
                    "the store was made with"
                )
            if base != expected:
                raise StoreError(f"{self.directory} lacks the file before {path.name}")
            self._open(base)
            expected = base + self._file_size
        self.position = expected

    @property
    def first(self) -> int:
        """The position of the oldest possible entry."""
        return next(iter(self._files), 0)

    def read(self, place: int) -> TimerEntry | None:
        """Returns the entry at a position; None if there is none."""
        fd = self._files.get(place // self._file_size * self._file_size)
        if fd is None or place + ENTRY_SIZE > self.position:
            return None
        return _entry(files.pread(fd, ENTRY_SIZE, place % self._file_size))

    def nearest(self, place: int) -> int:
        """Returns a position at or before `place` where an entry may start; the log's start if `place` is not in it."""
        if not self.first <= place <= self.position:
            return self.first
        in_file = place % self._file_size
        return place - in_file if in_file % ENTRY_SIZE else place

    def entries(self, place: int) -> Iterator[tuple[int, TimerEntry]]:
        """Yields (position, entry) from a position on, up to the first invalid entry."""
        while (fd := self._files.get(place // self._file_size * self._file_size)) is not None:
            data = files.pread(fd, ENTRY_SIZE, place % self._file_size)
            entry = _entry(data)
            if entry is not None:
                yield place, entry
                place += ENTRY_SIZE
            elif len(data) < _BLANK.size or _BLANK.unpack_from(data)[2] == MAGIC_BLANK:
                place += self._file_size - place % self._file_size
            else:
                return

    def start_at(self, end: int) -> None:
        """Sets the position of the next entry to `end` and deletes everything after it. Raises OSError."""
        for base in [base for base in self._files if base >= end and base > self.first]:
            files.close(self._files.pop(base))
            files.unlink(self._path(base))
        self.position = end
        fd = self._files.get(end // self._file_size * self._file_size)
        if fd is not None:
            files.ftruncate(fd, end % self._file_size)
            files.ftruncate(fd, self._file_size)

    def append(self, entry: TimerEntry) -> int:
        """Appends an entry and returns its position. If it raises StoreFull or StoreError, no entry was added."""
        place = self.position
        left = self._file_size - place % self._file_size
        try:
            if left < ENTRY_SIZE + _BLANK.size:
                self._write(place, _BLANK.pack(left, 0, MAGIC_BLANK)[:left])
                place += left
            self._write(
                place,
                _ENTRY.pack(
                    ENTRY_SIZE,
                    entry.previous,
                    entry.magic,
                    entry.write_time_ms,
                    entry.slot_ms - entry.write_time_ms,
                    entry.physical_offset,
                    entry.size,
                    entry.topic_hash,
                    0,
                ),
            )
        except OSError as e:
            raise store_error(e, f"can't write {self.directory}") from e
        self.position = place + ENTRY_SIZE
        return place

    def _write(self, place: int, data: bytes) -> None:
        base = place // self._file_size * self._file_size
        fd = self._files.get(base)
        if fd is None:
            files.make_lasting_directory(self.directory)
            fd = self._open(base)
            files.ftruncate(fd, self._file_size)
        if files.pwrite(fd, data, place % self._file_size) < len(data):
            raise StoreFull(f"can't write {self._path(base)}: {os.strerror(errno.ENOSPC)}")

    def delete_before(self, min_physical_offset: int) -> None:
        """Deletes the oldest files whose last entry refers to a record that the commit log no longer has."""
        for base in list(self._files)[:-1]:
            last = (self._file_size - _BLANK.size) // ENTRY_SIZE * ENTRY_SIZE - ENTRY_SIZE
            entry = self.read(base + last)
            if entry is None or entry.physical_offset >= min_physical_offset:
                return
            # First: if this fails, the next call tries again.
            files.unlink(self._path(base))
            files.close(self._files.pop(base))

    def flush(self, start: int) -> None:
        """Flushes all entries from a position on to disk. Any thread may call this. Raises OSError."""
        for base in list(self._files):
            if base + self._file_size > start:
                sync_file(self._path(base))
                if base >= start:
                    sync_directory(self.directory)

    def close(self) -> None:
        for fd in self._files.values():
            files.close(fd)
        self._files.clear()

    def _path(self, base: int) -> Path:
        return self.directory / f"{base:020d}"

    def _open(self, base: int) -> int:
        fd = files.open(self._path(base), files.O_RDWR | files.O_CREAT | files.O_CLOEXEC, 0o644)
        self._files[base] = fd
        return fd


def _entry(data: bytes) -> TimerEntry | None:
    if len(data) < ENTRY_SIZE:
        return None
    size, previous, magic, write_time_ms, delay_ms, physical_offset, record_size, topic_hash, _ = _ENTRY.unpack(data)
    # `TimerMessageStore.isMagicOK`
    if size != ENTRY_SIZE or magic & ~_MAGICS or record_size <= 0:
        return None
    return TimerEntry(
        previous, magic, write_time_ms, write_time_ms + delay_ms, physical_offset, record_size, topic_hash
    )
