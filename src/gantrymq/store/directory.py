"""Who has a store directory, and how its last user left it: the files `lock` and `abort`."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.store.mapped_file import sync_directory

#: struct flock of Linux: type, whence, start, length, pid. Java locks the first byte (DefaultMessageStore.start).
_FIRST_BYTE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)


class StoreDirectory:
    """The directory `root`. `was_aborted` after `lock()`: the last user didn't close the store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.abort_file = root / "abort"
        self.was_aborted = False
        self._lock: int | None = None

    def lock(self) -> None:
        """Takes the directory for this process, against Java's broker too. Raises StoreLocked, StoreError."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise StoreError(f"can't use {self.root} as a store: {e}") from e
        try:
            if _OFD_SETLK is not None:
                # Unlike flock it meets Java's lock, unlike lockf it keeps out a second store of this process.
                fcntl.fcntl(fd, _OFD_SETLK, _FIRST_BYTE)
            else:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(fd)
            holder = self._holder()
            raise StoreLocked(
                f"{self.root} is in use by another broker{holder and f' (process {holder})'}: stop it, or use another "
                "storePathRootDir"
            ) from e
        self._lock = fd
        self.was_aborted = self.abort_file.exists()

    def mark_in_use(self) -> None:
        """Leaves the file that tells the next user of a crash."""
        self.abort_file.write_text(str(os.getpid()))
        sync_directory(self.root)

    def mark_closed(self) -> None:
        self.abort_file.unlink(missing_ok=True)
        sync_directory(self.root)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _holder(self) -> str:
        try:
            pid = self.abort_file.read_text()[:20].strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return pid if pid.isdigit() else ""
