"""Files that nobody needs any more, on their way from the disk.

To unlink a file of a gigabyte takes long where its blocks are scattered, and its entry in the directory must be gone
from the disk before the next one's: the flusher's thread does both. A topic of thousands of queues takes long, too:
its directory is renamed at once, to one in `bin`, and emptied in steps. What is in `bin` when a store is opened goes.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, time_ns

from gantrymq.errors import StoreError
from gantrymq.store.mapped_file import MappedFile, store_error, sync_directory

#: For so long one step deletes files of a directory, s: the flusher has other work.
_STEP_S = 0.05


class Trash:
    """`add` and its like are called by the thread that uses the store, `empty` by the flusher's."""

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        self._is_made = False
        self._paths: deque[Path] = deque()
        #: Directories in `bin`, and what is still mapped of their files.
        self._directories: deque[tuple[Path, list[MappedFile]]] = deque()
        #: Why the first file is still there; "" when nothing is known against it.
        self.problem = ""

    def __bool__(self) -> bool:
        """Files wait; directories don't count, nobody waits for them."""
        return bool(self._paths)

    @property
    def is_empty(self) -> bool:
        return not self._paths and not self._directories

    def load(self) -> None:
        """Finds what an earlier user of the store has left."""
        if self._bin.is_dir():
            self._directories.extend((path, []) for path in self._bin.iterdir())

    def add(self, path: Path) -> None:
        self._paths.append(path)

    def add_directory(self, path: Path, files: Iterable[MappedFile]) -> None:
        """Takes a directory out of the way at once; `files` are those of it that may be mapped."""
        if not path.exists():
            return
        target = self._bin / str(time_ns())
        try:
            if not self._is_made:
                self._bin.mkdir(exist_ok=True)
                self._is_made = True
            path.rename(target)
        except OSError:
            # As on a full disk, where there is no room for another directory. Not later: a new topic may stand there.
            shutil.rmtree(path, ignore_errors=True)
        self._directories.append((target, list(files)))

    def empty(self) -> None:
        """Deletes files, in order, up to one that can't be deleted, then some of the directories' content.

        Raises StoreError; it may be tried again.
        """
        while self._paths:
            path = self._paths[0]
            try:
                path.unlink(missing_ok=True)
                sync_directory(path.parent)
            except (OSError, StoreError) as e:
                error = store_error(e, f"can't delete {path}") if isinstance(e, OSError) else e
                self.problem = str(error)
                raise error from e
            self.problem = ""
            self._paths.popleft()
        ends = monotonic() + _STEP_S
        while self._directories and monotonic() < ends:
            directory, files = self._directories[0]
            while files and monotonic() < ends:
                files.pop().unmap()
            if not files and _is_gone(directory, ends):
                self._directories.popleft()


def _is_gone(directory: Path, ends: float) -> bool:
    """Deletes what can be deleted by then; whether that was all. What can't be is tried at the next start."""
    for path, _, names in os.walk(directory, topdown=False):
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(path, name))
            if monotonic() >= ends:
                return False
        with suppress(OSError):
            os.rmdir(path)
    return True
