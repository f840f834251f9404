"""The file `timerwheel`: for each time slot, the position of its messages in the timer log.

Source: `store/timer/TimerWheel`, `Slot`.

    int64 time in units of the precision | int64 first | int64 last | int32 num | int32 magic

`first` and `last` are positions in the timer log; `num` is the number of messages. The index of a slot is its time
modulo the wheel's length of 14 days (with slots of 1 s). If the time stored in a slot differs, the slot is outdated.
The file is sparse. It is accessed with system calls, so that only a single write fails on a full disk.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gantrymq.store.mapped_file import put_aside, store_error, sync_file
from gantrymq.system import files

log = logging.getLogger(__name__)

#: `TimerMessageStore.slotsTotal`. A wheel has twice as many slots, so that overdue slots are not overwritten.
WINDOW_SLOTS = 7 * 24 * 3600
_SLOTS = 2 * WINDOW_SLOTS
_SLOT = Struct(">qqqii")
_FILE_SIZE = _SLOTS * _SLOT.size
_CHUNK = 32768 * _SLOT.size


class Slot(NamedTuple):
    """The messages of one time slot, in milliseconds. `first` and `last` are -1 if there are none."""

    time_ms: int
    first: int
    last: int
    num: int


class TimerWheel:
    """The wheel at `path`, with slots of `precision_ms`. The file is created with the first message."""

    def __init__(self, path: Path, precision_ms: int) -> None:
        self._path = path
        self._precision_ms = precision_ms
        self._fd: int | None = None

    def open(self) -> None:
        """Opens the file. Renames an invalid one, because it can be rebuilt from the timer log. Raises StoreError."""
        try:
            if files.is_directory(self._path) or (
                files.exists(self._path) and files.stat(self._path).st_size not in (0, _FILE_SIZE)
            ):
                log.error("%s can't be a timer wheel of %d bytes: it is made anew", self._path, _FILE_SIZE)
                put_aside(self._path)
            self._open(files.O_RDWR)
        except FileNotFoundError:
            return
        except OSError as e:
            raise store_error(e, f"can't open {self._path}") from e

    def get(self, time_ms: int) -> Slot:
        """Returns the slot of a time."""
        unit = time_ms // self._precision_ms
        if self._fd is not None:
            found, first, last, num, _ = _SLOT.unpack(files.pread(self._fd, _SLOT.size, unit % _SLOTS * _SLOT.size))
            if found == unit and last >= 0:
                return Slot(unit * self._precision_ms, first, last, num)
        return Slot(unit * self._precision_ms, -1, -1, 0)

    def put(self, slot: Slot) -> None:
        """Writes a slot. Raises StoreFull or StoreError."""
        unit = slot.time_ms // self._precision_ms
        data = _SLOT.pack(unit, slot.first, slot.last, slot.num, 0)
        try:
            fd = self._open(files.O_RDWR | files.O_CREAT) if self._fd is None else self._fd
            files.pwrite(fd, data, unit % _SLOTS * _SLOT.size)
        except OSError as e:
            raise store_error(e, f"can't write {self._path}") from e

    def _open(self, flags: int) -> int:
        """Opens the file and extends it to its full length. Raises OSError."""
        fd = files.open(self._path, flags | files.O_CLOEXEC, 0o644)
        try:
            files.ftruncate(fd, _FILE_SIZE)
        except OSError:
            files.close(fd)
            raise
        self._fd = fd
        return fd

    def slots_from(self, time_ms: int) -> Iterator[Slot]:
        """Yields the slots with messages at or after a time, in no particular order."""
        first_unit = time_ms // self._precision_ms
        for data in self._chunks():
            for unit, first, last, num, _ in _SLOT.iter_unpack(data):
                if unit >= first_unit and last >= 0 and unit > 0:
                    yield Slot(unit * self._precision_ms, first, last, num)

    def _chunks(self) -> Iterator[bytes]:
        """Yields the parts of the file that contain data."""
        at = 0
        while self._fd is not None and at < _FILE_SIZE:
            try:
                at = files.lseek(self._fd, at, files.SEEK_DATA)
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return
                raise store_error(e, f"can't read {self._path}") from e
            at -= at % _SLOT.size
            end = min(files.lseek(self._fd, at, files.SEEK_HOLE), at + _CHUNK, _FILE_SIZE)
            end += -end % _SLOT.size
            yield files.pread(self._fd, end - at, at)
            at = end

    def flush(self) -> None:
        """Flushes all slots to disk. Any thread may call this. Raises OSError."""
        if self._fd is not None:
            sync_file(self._path)

    def close(self) -> None:
        if self._fd is not None:
            files.close(self._fd)
            self._fd = None
