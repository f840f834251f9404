"""The files of the commit log: creates, flushes and removes them.

Only the flusher's thread calls fsync. A new file is in its directory, but its directory entry may not be on disk yet.
`CommitLog.flush` does not count data in the file as flushed before the entry is on disk. A power failure can therefore
lose this file but not a later one; `load` then ends the log before the gap. The alternative, an fsync before a file is
used, would delay the writer.

With several directories (`log_paths`), a new file is only in the table after its first blocks are reserved. If that
fails, the file is created in the next directory instead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.protocol.record import FIXED_SIZE_V4, store_timestamp_at
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.directory import lock_directory
from gantrymq.store.log_paths import LogFile, LogPaths, find_log_files, has_messages
from gantrymq.store.mapped_file import MappedFile, open_directory, store_error, sync_directory, sync_entries
from gantrymq.store.trash import Trash
from gantrymq.system import files, threads

log = logging.getLogger(__name__)


class LogFiles:
    """The files of `file_size` bytes in the directories `paths`, by the physical offset of their first byte."""

    def __init__(self, paths: LogPaths, file_size: int) -> None:
        self.paths = paths
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
        #: The descriptors that have the locks of the directories.
        self._directory_fds: dict[Path, int] = {}
        #: Offsets of files that get no more records, although they are not full, because their disk failed.
        self._ended: set[int] = set()
        #: The directories in which `load` found no file.
        self.empty: list[Path] = []

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
        for directory in self.paths.all:
            if files.is_directory(directory):
                self._lock_directory(directory)
        found, unused = find_log_files(self.paths.all)
        self._drop_unused(found, unused, was_aborted=was_aborted)
        self._drop_before_start(found, checkpoint, was_aborted=was_aborted)
        used = {file.path.parent for file in found}
        self.empty = [directory for directory in self.paths.all if directory not in used]
        self.min_offset = expected = found[0].base if found else 0
        for path, base, length in found:
            file = MappedFile(path.parent, base, self.file_size)
            is_last = base == found[-1].base
            short = length < self.file_size
            if base % self.file_size or length > self.file_size or (short and (not is_last or len(found) == 1)):
                raise StoreError(
                    f"{path} has {length} bytes, mappedFileSizeCommitLog is {self.file_size}: set it to the "
                    f"size that the store was made with, or, if the file was cut off, `truncate -s {self.file_size}` it"
                )
            if base != expected and not self._behind_gap:
                if not was_aborted or self._was_flushed(path, expected, checkpoint):
                    raise StoreError(f"{self._lacking()} the file before {path.name}: bring it back, or begin anew")
                log.warning("%s the file before %s: the log ends there", self._lacking(), path.name)
            if base != expected:
                self._behind_gap.append(file)
                continue
            if short:
                log.warning("%s has %d bytes in place of %d: the rest is taken as empty", path, length, self.file_size)
            expected = base + self.file_size
            self._table[base] = file
        if found and checkpoint.confirm_phy_offset > expected:
            raise self.ends_early(expected)
        if self.paths.has_several:
            # Otherwise the first files could be on full disks.
            self.paths.used_percent()
        return expected

    def _lacking(self) -> str:
        return f"{self.paths} lack{'' if self.paths.has_several else 's'}"

    def ends_early(self, end: int) -> StoreError:
        """Returns the error for a log that ends at `end`, before messages that it had."""
        hint = f" ({', '.join(map(str, self.empty))} has none)" if self.empty else ""
        return StoreError(
            f"the log in {self.paths} ends at {end}, but had messages after it: mount, configure or restore the "
            f"directory with the file {end:020d}{hint}, or delete the file checkpoint to begin without these messages"
        )

    def _drop_unused(self, found: list[LogFile], unused: list[LogFile], *, was_aborted: bool) -> None:
        """Removes unused files from `found` and deletes them.

        Unused are `unused`, empty files that a power failure left, and a file without messages of another size.
        """
        last = found[-1].base if found else 0
        empty = [file for file in found if file.length == 0 and (was_aborted or file.base == last)]
        if len(found) == 1 and found[0].base == 0 and found[0].length != self.file_size and not has_messages(found[0]):
            empty = list(found)
        for file in empty:
            log.warning("%s has no messages: deleted", file.path)
            files.unlink(file.path)
            found.remove(file)
        for file in unused:
            log.warning("%s has no messages, and another directory has a file of this name: deleted", file.path)
            with suppress(OSError):
                files.unlink(file.path)

    def _drop_before_start(self, found: list[LogFile], checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """Removes files without messages before a gap from `found`: a failing disk can keep them after their creation.

        A power failure can also leave such a file, but then nothing after it was flushed.
        """
        while self.paths.has_several and len(found) > 1 and found[1].base > found[0].base + self.file_size:
            end = found[0].base + self.file_size
            if has_messages(found[0]) or (was_aborted and not self._was_flushed(found[1].path, end, checkpoint)):
                break
            log.warning("%s has no messages and is before the start of the log: ignored", found[0].path)
            del found[0]

    def _was_flushed(self, after: Path, missing: int, checkpoint: Checkpoint) -> bool:
        """Returns whether the log was on disk beyond the missing file, according to the checkpoint."""
        stored = store_timestamp_at(files.read_bytes(after, FIXED_SIZE_V4), 0)
        return checkpoint.confirm_phy_offset > missing or 0 <= stored <= checkpoint.min_timestamp

    def end_at(self, end: int) -> None:
        """Deletes the files after the one with `end`, and creates the directories. Raises StoreError or OSError."""
        after = [self._table.pop(base) for base in sorted(self._table) if base > end]
        # Delete the last file first, so that a power failure leaves no gap.
        for file in reversed(after + self._behind_gap):
            log.info("deleting %s, which is after the end of the log", file.path)
            file.delete()
            sync_directory(file.path.parent)
        self._behind_gap.clear()
        self._ended.clear()
        for directory in self.paths.writable:
            try:
                self._use_directory(directory)
            except StoreError as e:
                if not self._failed(directory, e) or not self.paths.is_working:
                    raise
        self._new = deque(file for file in self._new if file.base in self._table)

    def drop_all(self, trash: Trash, begin: int) -> None:
        """Removes all files. The log then starts at the physical offset `begin`."""
        for file in self._table.values():
            file.close()
        self._table.clear()
        self._close_directories()
        for directory in self.paths.all:
            trash.add_directory(directory, ())
        self.min_offset = begin

    # -- adding and removing files ------------------------------------------------------------------------------

    def made(self, base: int, reserve: int = 0) -> MappedFile:
        """Returns the file at `base`, open and mapped. Creates it if it is missing. Raises StoreFull or StoreError.

        With several directories, the first `reserve` bytes of a new file are reserved.
        """
        file = self._table.get(base)
        if file is not None:
            file.open()
            file.map()
            return file
        file = self._created(base, reserve if self.paths.has_several else 0)
        with self.lock:
            self._table[base] = file
            self._new.append(file)
        return file

    def _created(self, base: int, reserve: int) -> MappedFile:
        """Creates a file in the first directory where this is possible. Raises the error of the last one."""
        directories = self.paths.for_new_file(base // self.file_size)
        for number, directory in enumerate(directories, 1):
            file = MappedFile(directory, base, self.file_size)
            try:
                self._use_directory(directory)
                file.open()
                file.map()
                if reserve:
                    file.reserve(0, reserve)
                    file.will_be_written(0)
            except BaseException as e:
                with suppress(OSError):
                    file.delete()
                if not isinstance(e, StoreError) or not self._failed(directory, e) or number == len(directories):
                    raise
            else:
                return file
        raise AssertionError("there is always a directory")

    def end_early(self, base: int, error: StoreError) -> bool:
        """Ends the use of a file after an error of its disk, if another disk can take the next file.

        Returns false if none can, or if the error does not concern the disk.
        """
        file = self._table[base]
        if not self._failed(file.path.parent, error) or not self.paths.is_working:
            return False
        self._ended.add(base)
        return True

    def is_ended(self, base: int) -> bool:
        """Returns whether the file at `base` gets no more records, although it is not full."""
        return base in self._ended

    def sync(self, file: MappedFile) -> None:
        """Flushes a file and new files' directory entries. Raises OSError or SyncFailed as `MappedFile.sync` does."""
        file.sync()
        count = len(self._new)
        if count:
            for directory in {new.path.parent for new in list(self._new)[:count]}:
                sync_entries(self._directory_fds[directory], directory)
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
            stack.callback(self._close_directories)

    def _use_directory(self, directory: Path) -> None:
        """Creates and locks a directory, unless this was done before. Raises StoreLocked or StoreError."""
        if directory not in self._directory_fds:
            try:
                files.make_lasting_directory(directory)
                self._lock_directory(directory)
            except OSError as e:
                raise store_error(e, f"can't use {directory}") from e

    def _lock_directory(self, directory: Path) -> None:
        """Opens and locks a directory, because two brokers would destroy a shared log. Raises StoreLocked."""
        fd = open_directory(directory)
        if not lock_directory(fd, directory):
            files.close(fd)
            raise StoreLocked(f"{directory} is in use by another broker: stop it, or use another storePathCommitLog")
        self._directory_fds[directory] = fd

    def _failed(self, directory: Path, error: StoreError) -> bool:
        """Excludes a directory if an error concerns its disk, and returns whether it does."""
        return self.paths.failed(directory, error, self.offsets_in(directory))

    def offsets_in(self, directory: Path) -> list[int]:
        """Returns the offsets of the files in a directory."""
        with self.lock:
            return [base for base, file in self._table.items() if file.path.parent == directory]

    def _close_directories(self) -> None:
        fds, self._directory_fds = self._directory_fds, {}
        for fd in fds.values():
            files.close(fd)
