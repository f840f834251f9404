"""The files of the commit log: creates, flushes and removes them.

Only the flusher's thread calls fsync. A new file is in its directory, but its directory entry may not be on disk yet.
`CommitLog.flush` does not count data in the file as flushed before the entry is on disk. A power failure can therefore
lose this file but not a later one; `load` then ends the log before the gap. The alternative, an fsync before a file is
used, would delay the writer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.protocol.record import BLANK_SIZE, FIXED_SIZE_V4, store_timestamp_at
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.directory import lock_directory
from gantrymq.store.mapped_file import MappedFile, list_files, open_directory, sync_directory, sync_entries
from gantrymq.store.trash import Trash
from gantrymq.system import files, threads

log = logging.getLogger(__name__)


class LogFiles:
    """The files of `file_size` bytes in `directory`, by the physical offset of their first byte."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        #: The physical offset at which the first file starts.
        self.min_offset = 0
        #: Protects changes of the file table, and mapping a file of a log that may be closed. Never locked during disk
        #: I/O.
        self.lock = threads.Lock()
        self._table: dict[int, MappedFile] = {}
        #: Files whose directory entries may not be on disk, oldest first.
        self._new: deque[MappedFile] = deque()
        #: Files that a power failure left after a missing file.
        self._behind_gap: list[MappedFile] = []
        #: The descriptor that has the lock of the directory.
        self._directory_fd: int | None = None
        #: Whether `load` found no file.
        self.was_missing = False

    def __contains__(self, base: int) -> bool:
        return base in self._table

    def __getitem__(self, base: int) -> MappedFile:
        return self._table[base]

    def at(self, physical_offset: int) -> MappedFile | None:
        """Returns the file that contains this physical offset; None if there is none."""
        return self._table.get(physical_offset // self.file_size * self.file_size)

    def reserved(self, base: int) -> int:
        """Returns the physical offset up to which the file at `base` has blocks; `base` if there is no file."""
        file = self._table.get(base)
        return base if file is None else base + file.reserved

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self, checkpoint: Checkpoint, *, was_aborted: bool) -> int:
        """Locks the directory if it exists and finds the files. Returns the end of the last file.

        If a power failure can be the reason for a missing file, the log ends before it. A power failure is excluded if
        the checkpoint says that later data is on disk. Raises StoreLocked, and StoreError if the files can't belong to
        one log.
        """
        if files.is_directory(self.directory):
            self._lock_directory()
        lengths = list_files(self.directory)
        self.was_missing = not lengths
        self._drop_unused(lengths, was_aborted=was_aborted)
        self.min_offset = expected = min(lengths, default=0)
        for base, length in lengths.items():
            file = MappedFile(self.directory, base, self.file_size)
            is_last = base == max(lengths)
            short = length < self.file_size
            if base % self.file_size or length > self.file_size or (short and (not is_last or len(lengths) == 1)):
                raise StoreError(
                    f"{file.path} has {length} bytes, mappedFileSizeCommitLog is {self.file_size}: set it to the "
                    f"size that the store was made with, or, if the file was cut off, `truncate -s {self.file_size}` it"
                )
            if base != expected and not self._behind_gap:
                if not was_aborted or self._was_flushed(base, expected, checkpoint):
                    raise StoreError(
                        f"{self.directory} lacks the file before {file.path.name}: bring it back, or begin anew"
                    )
                log.warning("%s lacks the file before %s: the log ends there", self.directory, file.path.name)
            if base != expected:
                self._behind_gap.append(file)
                continue
            if short:
                log.warning(
                    "%s has %d bytes in place of %d: the rest is taken as empty", file.path, length, self.file_size
                )
            expected = base + self.file_size
            self._table[base] = file
        return expected

    def _drop_unused(self, lengths: dict[int, int], *, was_aborted: bool) -> None:
        """Deletes empty files that a power failure left, and an unused file of another size."""
        last = max(lengths, default=0)
        unused = [base for base, length in lengths.items() if length == 0 and (was_aborted or base == last)]
        if list(lengths) == [0] and lengths[0] != self.file_size and not any(self._head(0)[:BLANK_SIZE]):
            unused = [0]
        for base in unused:
            path = MappedFile(self.directory, base, 0).path
            log.warning("%s has no messages: deleted", path)
            files.unlink(path)
            del lengths[base]

    def _was_flushed(self, after: int, missing: int, checkpoint: Checkpoint) -> bool:
        """Returns whether the log was on disk beyond the missing file, according to the checkpoint."""
        stored = store_timestamp_at(self._head(after), 0)
        return checkpoint.confirm_phy_offset > missing or 0 <= stored <= checkpoint.min_timestamp

    def _head(self, base: int) -> bytes:
        return files.read_bytes(MappedFile(self.directory, base, 0).path, FIXED_SIZE_V4)

    def end_at(self, end: int) -> None:
        """Deletes the files after the one that contains `end`. Creates the directory. Raises StoreError or OSError."""
        after = [self._table.pop(base) for base in sorted(self._table) if base > end]
        # Delete the last file first, so that a power failure leaves no gap.
        for file in reversed(after + self._behind_gap):
            log.info("deleting %s, which is after the end of the log", file.path)
            file.delete()
            sync_directory(self.directory)
        self._behind_gap.clear()
        if self._directory_fd is None:
            files.make_lasting_directory(self.directory)
            self._lock_directory()
        self._new = deque(file for file in self._new if file.base in self._table)

    def drop_all(self, trash: Trash, begin: int) -> None:
        """Removes all files. The log then starts at the physical offset `begin`."""
        for file in self._table.values():
            file.close()
        self._table.clear()
        self._close_directory()
        trash.add_directory(self.directory, ())
        self.min_offset = begin

    # -- adding and removing files ------------------------------------------------------------------------------

    def made(self, base: int) -> MappedFile:
        """Returns the file at `base`, open and mapped. Creates it if it is missing. Raises StoreFull or StoreError."""
        file = self._table.get(base)
        if file is not None:
            file.open()
            file.map()
            return file
        file = MappedFile(self.directory, base, self.file_size)
        try:
            file.open()
            file.map()
        except BaseException:
            with suppress(OSError):
                file.delete()
            raise
        with self.lock:
            self._table[base] = file
            self._new.append(file)
        return file

    def sync(self, file: MappedFile) -> None:
        """Flushes a file and new files' directory entries. Raises OSError or SyncFailed as `MappedFile.sync` does."""
        file.sync()
        count = len(self._new)
        if count and self._directory_fd is not None:
            sync_entries(self._directory_fd, self.directory)
            for _ in range(count):
                self._new.popleft()

    def new(self) -> Iterator[MappedFile]:
        """Returns the files whose directory entries may not be on disk yet."""
        return iter(list(self._new))

    def forget_first(self) -> Path:
        """Removes the first file and returns its path. Slices of it that a socket still uses stay valid."""
        file = self._table.pop(self.min_offset)
        log.info("deleting %s", file.path)
        self.min_offset += self.file_size
        file.close()
        return file.path

    def close(self) -> None:
        with ExitStack() as stack:
            for file in self._table.values():
                stack.callback(file.close)
            stack.callback(self._close_directory)

    def _lock_directory(self) -> None:
        """Opens and locks the directory, because two brokers would destroy a shared log. Raises StoreLocked."""
        fd = open_directory(self.directory)
        if not lock_directory(fd, self.directory):
            files.close(fd)
            raise StoreLocked(
                f"{self.directory} is in use by another broker: stop it, or use another storePathCommitLog"
            )
        self._directory_fd = fd

    def _close_directory(self) -> None:
        fd, self._directory_fd = self._directory_fd, None
        if fd is not None:
            files.close(fd)
