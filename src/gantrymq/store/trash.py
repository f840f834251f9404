"""Files that nobody needs any more, on their way from the disk.

To unlink a file of a gigabyte takes long where its blocks are scattered, and its entry in the directory must be gone
from the disk before the next one's: the flusher's thread does both.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.mapped_file import store_error, sync_directory


class Trash:
    """`add` is called by the thread that uses the store, `empty` by the flusher's."""

    def __init__(self) -> None:
        self._paths: deque[Path] = deque()
        #: Why the first one is still there; "" when nothing is known against it.
        self.problem = ""

    def __bool__(self) -> bool:
        return bool(self._paths)

    def add(self, path: Path) -> None:
        self._paths.append(path)

    def empty(self) -> None:
        """Deletes all, in order, up to one that can't be deleted: raises StoreError, and it may be tried again."""
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
