"""Room at the end of the commit log: the next file, and blocks on the disk, made by a thread ahead of their use."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.protocol.record import BLANK_SIZE
from gantrymq.store.log_files import LogFiles
from gantrymq.store.room_maker import RoomMaker
from gantrymq.system import threads

#: Blocks are reserved in such pieces, the next one when half of it is used.
RESERVE = 64 * 1024 * 1024


class LogRoom:
    """For a log that ends at the physical offset `position()`; `rooms` has the thread.

    `need` and `need_for_copy` raise StoreBusy while a file is made, StoreFull and StoreError when it can't be.
    """

    def __init__(self, files: LogFiles, rooms: RoomMaker, position: Callable[[], int]) -> None:
        self._files = files
        self._rooms = rooms
        self._position = position
        rooms.for_all.add(self._make_needed)
        #: Held while files and blocks are made, never by who has the files' lock.
        self._making = threads.Lock()
        #: The longest record that room is needed for.
        self._needed = 0
        #: Up to this physical offset a copy of another log needs room.
        self._copy_end = 0
        #: Where what is being written ends: room is made ahead of this.
        self._written_end = 0

    def need(self, size: int) -> None:
        """Has room made for a record of so many bytes, and a blank behind it."""
        self._needed = max(self._needed, size)
        self._rooms.need(self._make_needed)

    def need_for_copy(self, end: int) -> None:
        """Has room made for a copy of another log up to a physical offset of the last file, or its end."""
        self._copy_end = end
        self._rooms.need(self._make_copy_room)

    def ask(self, written_end: int) -> None:
        """Has room made ahead of its use; what is being written ends at that physical offset."""
        self._written_end = written_end
        self._rooms.ask(self._make_ahead)

    def check_line(self) -> None:
        """Raises StoreBusy for who would be served before others that wait for the same."""
        self._rooms.check_line(self._make_needed)

    @property
    def is_closed(self) -> bool:
        """Others wait for room, and nobody who comes now is to have any before them."""
        return self._rooms.is_closed_for(self._make_needed)

    def forget(self) -> None:
        """The log ends elsewhere: nobody needs what was needed."""
        self._needed = self._copy_end = self._written_end = 0

    def _make_needed(self) -> None:
        """Makes what the next record needs; called by the room maker. Raises StoreFull, StoreError."""
        with self._making:
            base, used = self._place(self._position())
            needed = self._needed + BLANK_SIZE
            if used + needed <= self._files.file_size:
                self._reserve(base, used, needed)
            else:
                self._reserve(base, used, BLANK_SIZE)
                self._reserve(base + self._files.file_size, 0, needed)
            self._needed = 0

    def _make_copy_room(self) -> None:
        """Makes what the next bytes of a copy need; as `_make_needed`."""
        with self._making:
            base, used = self._place(self._position())
            self._reserve(base, used, self._copy_end - base - used)
            if self._copy_end == base + self._files.file_size:
                self._reserve(self._copy_end, 0, BLANK_SIZE)

    def _make_ahead(self) -> None:
        """Makes what will be needed; as `_make_needed`."""
        with self._making:
            base, used = self._place(max(self._position(), self._written_end))
            self._reserve(base, used, RESERVE // 2)
            if used >= self._files.file_size // 2:
                self._reserve(base + self._files.file_size, 0, BLANK_SIZE)

    def _place(self, end: int) -> tuple[int, int]:
        """(base of the file written to, bytes of it that are used) where the log ends there."""
        base = end // self._files.file_size * self._files.file_size
        return base, end - base

    def _reserve(self, base: int, used: int, least: int) -> None:
        """Makes a file that has blocks for at least so many bytes more than are used."""
        file = self._files.made(base)
        if file.reserved < min(used + least, self._files.file_size):
            start = max(file.reserved, used)
            file.reserve(start, start + max(least, RESERVE))
            file.will_be_written(used)
