"""Files that nobody needs any more, on their way from the disk.

To unlink a file of a gigabyte takes long where its blocks are scattered, and its entry in the directory must be gone
from the disk before the next one's: the flusher's thread does both. A topic of thousands of queues takes long, too:
its directory is renamed at once, to one in `bin`, and emptied in steps once that is on the disk: or a power failure
could bring back a topic with some of its queues. What is in `bin` when a store is opened goes.
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
        #: By directory in `bin`: where it was before, while that isn't on the disk.
        self._was_in: dict[Path, Path] = {}
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
        if files.is_directory(self._bin):
            self._directories.extend((path, []) for path in files.children(self._bin))

    def add(self, path: Path) -> None:
        self._paths.append(path)

    def add_directory(self, path: Path, mapped: Iterable[MappedFile]) -> None:
        """Takes a directory out of the way at once; `mapped` are those of its files that may be mapped."""
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
            # As on a full disk, where there is no room for another directory. Not later: a new topic may stand there.
            files.remove_tree(path)
        self._directories.append((target, list(mapped)))

    def empty(self) -> None:
        """Deletes files, in order, up to one that can't be deleted, then some of the directories' content.

        Raises StoreError; it may be tried again.
        """
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
                    # That was deleted, too.
                    pass
                except (OSError, StoreError):
                    return
                del self._was_in[directory]
            while mapped and monotonic() < ends:
                mapped.pop().unmap()
            if not mapped and _is_gone(directory, ends):
                self._directories.popleft()


def _is_gone(directory: Path, ends: float) -> bool:
    """Deletes what can be deleted by then; whether that was all. What can't be is tried at the next start."""
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
