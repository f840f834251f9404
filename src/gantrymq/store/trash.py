"""Deletes unused files in the flusher's thread.

Deleting a file of a gigabyte is slow if its blocks are fragmented. Files are deleted in order: each deletion must be on
disk before the next file is deleted. Deleting a topic with thousands of queues is slow, too. Its directory is renamed
at once, into `bin`. When the rename is on disk, its files are deleted in steps. Otherwise a power failure could restore
a topic with only some of its queues. When a store is opened, the content of `bin` is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.mapped_file import MappedFile, store_error, sync_directory
from gantrymq.system import files
from gantrymq.system.clock import monotonic, time_ns

#: Maximum time per step to delete files of directories, in seconds, because the flusher has other work.
_STEP_S = 0.05


class Trash:
    """The files to delete. The store's thread adds files, and the flusher's thread calls `empty`."""

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        self._is_made = False
        self._paths: deque[Path] = deque()
        #: Directories in `bin`, with their files that are still mapped.
        self._directories: deque[tuple[Path, list[MappedFile]]] = deque()
        #: Directory in `bin` -> its former parent directory, until the rename is on disk.
        self._was_in: dict[Path, Path] = {}
        #: The reason why the first file could not be deleted; "" if there is none.
        self.problem = ""

    def __bool__(self) -> bool:
        """Whether files are to be deleted. Directories don't count, because no caller depends on them."""
        return bool(self._paths)

    @property
    def is_empty(self) -> bool:
        return not self._paths and not self._directories

    def load(self) -> None:
        """Finds directories that an earlier user of the store left."""
        if files.is_directory(self._bin):
            self._directories.extend((path, []) for path in files.children(self._bin))

    def add(self, path: Path) -> None:
        """Adds a file to delete."""
        self._paths.append(path)

    def add_directory(self, path: Path, mapped: Iterable[MappedFile]) -> None:
        """Moves a directory into `bin` at once. `mapped` are its files that may still be mapped."""
        if not files.exists(path):
            return
        target = self._bin / str(time_ns())
        try:
            if not self._is_made:
                files.make_directory(self._bin)
                self._is_made = True
            files.rename(path, target)
            self._was_in[target] = path.parent
        except OSError:
            # The rename fails on a full disk, for example. A new topic can use the path, so it must be free now.
            files.remove_tree(path)
        self._directories.append((target, list(mapped)))

    def empty(self) -> None:
        """Deletes files in order until one fails, then parts of the directories. Raises StoreError; can be repeated."""
        while self._paths:
            path = self._paths[0]
            try:
                files.unlink(path, missing_ok=True)
                sync_directory(path.parent)
            except (OSError, StoreError) as e:
                error = store_error(e, f"can't delete {path}") if isinstance(e, OSError) else e
                self.problem = str(error)
                raise error from e
            self.problem = ""
            self._paths.popleft()
        ends = monotonic() + _STEP_S
        while self._directories and monotonic() < ends:
            directory, mapped = self._directories[0]
            if directory in self._was_in:
                try:
                    sync_directory(self._was_in[directory])
                except FileNotFoundError:
                    # The parent directory was deleted, too.
                    pass
                except (OSError, StoreError):
                    return
                del self._was_in[directory]
            while mapped and monotonic() < ends:
                mapped.pop().unmap()
            if not mapped and _is_gone(directory, ends):
                self._directories.popleft()


def _is_gone(directory: Path, ends: float) -> bool:
    """Deletes files until `ends`. Returns whether the directory is gone. The next start retries undeletable files."""
    with suppress(OSError):
        for path in list(files.children(directory)):
            if files.is_directory(path):
                if not _is_gone(path, ends):
                    return False
                continue
            with suppress(OSError):
                files.unlink(path)
            if monotonic() >= ends:
                return False
        files.remove_directory(directory)
    return True
