"""Preallocates space at the end of the commit log in a thread: the next file, and blocks on disk."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.errors import StoreError
from gantrymq.protocol.record import BLANK_SIZE
from gantrymq.store.log_files import LogFiles
from gantrymq.store.preallocation import Preallocation
from gantrymq.system import threads

#: Blocks are reserved in pieces of this size, in bytes. When half of a piece is used, the next piece is reserved.
RESERVE = 64 * 1024 * 1024


class LogPreallocation:
    """Preallocates space for a log that ends at the physical offset `position()`. `preallocation` has the thread.

    `need` and `need_for_copy` raise StoreBusy while a file is preallocated, and StoreFull or StoreError if that fails.
    """

    def __init__(self, files: LogFiles, preallocation: Preallocation, position: Callable[[], int]) -> None:
        self._files = files
        self._preallocation = preallocation
        self._position = position
        preallocation.for_all.add(self._make_needed)
        #: Serializes preallocation. Never locked by a thread that has the lock of `files`.
        self._making = threads.Lock()
        #: Size of the largest record that needs space, in bytes.
        self._needed = 0
        #: The physical offset up to which replicated data needs space.
        self._copy_end = 0
        #: The end of the data that is being written. Space after it is preallocated.
        self._written_end = 0

    def need(self, size: int) -> None:
        """Preallocates space for a record of `size` bytes and a blank after it."""
        self._needed = max(self._needed, size)
        self._preallocation.need(self._make_needed)

    def need_for_copy(self, end: int) -> None:
        """Preallocates space for replicated data up to `end`, a physical offset in the last file or its end."""
        self._copy_end = end
        self._preallocation.need(self._preallocate_for_copy)

    def ask(self, written_end: int) -> None:
        """Requests more space in advance. `written_end` is the end of the data that is being written."""
        self._written_end = written_end
        self._preallocation.ask(self._make_ahead)

    def check_wait_queue(self) -> None:
        """Raises StoreBusy if a caller would overtake others in the wait queue."""
        self._preallocation.check_wait_queue(self._make_needed)

    @property
    def is_closed(self) -> bool:
        """Whether requests wait for space. If so, new requests must not overtake them."""
        return self._preallocation.is_closed_for(self._make_needed)

    def forget(self) -> None:
        """Discards all requests, because the end of the log has changed."""
        self._needed = self._copy_end = self._written_end = 0

    def _make_needed(self) -> None:
        """Creates the space for the next record. Called by the preallocation thread. Raises StoreFull or StoreError."""
        with self._making:
            base, used = self._place(self._position())
            needed = self._needed + BLANK_SIZE
            if used + needed <= self._files.file_size and not self._files.is_ended(base):
                self._reserve_or_end(base, used, needed, needed)
            else:
                self._reserve_blank(base, used)
                self._reserve(base + self._files.file_size, 0, needed)
            self._needed = 0

    def _preallocate_for_copy(self) -> None:
        """Creates the space for the next replicated data. Raises as `_make_needed` does."""
        with self._making:
            base, used = self._place(self._position())
            self._reserve(base, used, self._copy_end - base - used)
            if self._copy_end == base + self._files.file_size:
                self._reserve(self._copy_end, 0, BLANK_SIZE)

    def _make_ahead(self) -> None:
        """Creates space in advance. Raises as `_make_needed` does."""
        with self._making:
            base, used = self._place(max(self._position(), self._written_end))
            if not self._files.is_ended(base):
                self._reserve_or_end(base, used, RESERVE // 2, BLANK_SIZE)
            if used >= self._files.file_size // 2:
                self._reserve(base + self._files.file_size, 0, BLANK_SIZE)

    def _place(self, end: int) -> tuple[int, int]:
        """Returns the base of the current file and the number of its used bytes, for a log that ends at `end`."""
        base = end // self._files.file_size * self._files.file_size
        return base, end - base

    def _reserve_or_end(self, base: int, used: int, least: int, in_next: int) -> None:
        """Like `_reserve`, but if this disk fails and another one doesn't, `in_next` bytes of the next file instead.

        The file at `base` then gets no more records, except for the blank at its end.
        """
        try:
            self._reserve(base, used, least)
        except StoreError as e:
            if base not in self._files or not self._files.end_early(base, e):
                raise
            self._reserve_blank(base, used)
            self._reserve(base + self._files.file_size, 0, in_next)

    def _reserve_blank(self, base: int, used: int) -> None:
        """Ensures that a blank can be written after the used bytes. Only needs a block if one ends there."""
        file = self._files.made(base)
        end = min(used + BLANK_SIZE, self._files.file_size)
        if file.reserved < end:
            file.reserve(used, end)

    def _reserve(self, base: int, used: int, least: int) -> None:
        """Ensures that the file at `base` has blocks for at least `least` bytes after the used ones."""
        file = self._files.made(base, max(least, RESERVE))
        if file.reserved < min(used + least, self._files.file_size):
            start = max(file.reserved, used)
            file.reserve(start, start + max(least, RESERVE))
            file.will_be_written(used)
