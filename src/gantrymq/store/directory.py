"""Who has a store directory, and how its last user left it: the files `lock` and `abort`.

Two locks: of the file `lock`, which Java's broker takes, too; and of the directory itself, which holds when somebody
has deleted that file. The alternative that lost, to look now and then whether it is still the same file, leaves a
moment in which there are two brokers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from contextlib import ExitStack
from pathlib import Path

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.store.mapped_file import open_directory, sync_directory

log = logging.getLogger(__name__)

#: struct flock of Linux: type, whence, start, length, pid. Java locks the first byte (DefaultMessageStore.start).
_FIRST_BYTE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)


class StoreDirectory:
    """The directory `root`. `was_aborted` after `lock()`: the last user didn't close the store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.abort_file = root / "abort"
        self.was_aborted = False
        self._locks = ExitStack()

    def lock(self) -> None:
        """Takes the directory for this process, against Java's broker too. Raises StoreLocked, StoreError."""
        with ExitStack() as stack:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                directory = open_directory(self.root)
                stack.callback(os.close, directory)
                if not lock_directory(directory):
                    raise self._locked()
                file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                stack.callback(os.close, file)
            except OSError as e:
                raise StoreError(f"can't use {self.root} as a store: {e}") from e
            try:
                if _OFD_SETLK is not None:
                    # Unlike flock it meets Java's lock, unlike lockf it keeps out a second store of this process.
                    fcntl.fcntl(file, _OFD_SETLK, _FIRST_BYTE)
                else:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                raise self._locked() from e
            self.was_aborted = self.abort_file.exists()
            self._locks = stack.pop_all()

    def _locked(self) -> StoreLocked:
        holder = self._holder()
        return StoreLocked(
            f"{self.root} is in use by another broker{holder and f' (process {holder})'}: stop it, or use another "
            "storePathRootDir"
        )

    def mark_in_use(self) -> None:
        """Leaves the file that tells the next user of a crash."""
        self.abort_file.write_text(str(os.getpid()))
        sync_directory(self.root)

    def mark_closed(self) -> None:
        self.abort_file.unlink(missing_ok=True)
        sync_directory(self.root)

    def unlock(self) -> None:
        self._locks.close()

    def _holder(self) -> str:
        try:
            pid = self.abort_file.read_text()[:20].strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return pid if pid.isdigit() else ""


def lock_directory(fd: int) -> bool:
    """Takes the lock of a directory, until the descriptor is closed; whether nobody else has it.

    Also True where directories have no locks, as on NFS: there the one of the file must do.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        log.warning("the store's directory can't be locked, only its file `lock` is: %s", e)
    return True
