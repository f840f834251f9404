"""Locks a store directory for one process and detects a crash of its last user. Uses the files `lock` and `abort`.

There are two locks. The first one, on the file `lock`, also excludes Java's broker. The second one, on the directory,
works even if somebody deletes that file. Periodic checks for the file would leave a moment in which two brokers run.

The log's directory has its own lock (`LogFiles`), because it can be inside another broker's store.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.store.mapped_file import open_directory, sync_directory
from gantrymq.system import files, network

log = logging.getLogger(__name__)


class StoreDirectory:
    """The store directory `root`. After `lock()`, `was_aborted` is true if the last user did not close the store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.abort_file = root / "abort"
        self.was_aborted = False
        self._locks = ExitStack()

    def lock(self) -> None:
        """Locks the directory for this process, also against Java's broker. Raises StoreLocked or StoreError."""
        with ExitStack() as stack:
            try:
                files.make_lasting_directory(self.root)
                directory = open_directory(self.root)
                stack.callback(files.close, directory)
                if not lock_directory(directory, self.root):
                    raise self._locked()
                file = files.open(self.root / "lock", files.O_RDWR | files.O_CREAT | files.O_CLOEXEC, 0o644)
                stack.callback(files.close, file)
            except OSError as e:
                raise StoreError(f"can't use {self.root} as a store: {e}") from e
            try:
                files.lock_as_java(file)
            except OSError as e:
                raise self._locked() from e
            self.was_aborted = files.exists(self.abort_file)
            self._locks = stack.pop_all()

    def _locked(self) -> StoreLocked:
        holder = self._holder()
        return StoreLocked(
            f"{self.root} is in use by another broker{holder and f' (process {holder})'}: stop it, or use another "
            "storePathRootDir"
        )

    def mark_in_use(self) -> None:
        """Creates the file that reveals a crash to the next user."""
        files.write(self.abort_file, str(network.process_id()).encode())
        sync_directory(self.root)

    def mark_closed(self) -> None:
        """Removes the file that `mark_in_use` created, after a clean shutdown."""
        files.unlink(self.abort_file, missing_ok=True)
        sync_directory(self.root)

    def unlock(self) -> None:
        self._locks.close()

    def _holder(self) -> str:
        try:
            pid = files.read_bytes(self.abort_file, 20).decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return pid if pid.isdigit() else ""


def lock_directory(fd: int, path: Path) -> bool:
    """Locks the directory `path` until the descriptor is closed. Returns False if another process holds the lock.

    Returns True as well if directories can't be locked, as on NFS.
    """
    try:
        files.lock_whole(fd)
    except BlockingIOError:
        return False
    except OSError as e:
        log.warning("%s can't be locked as a directory, only the file `lock` in storePathRootDir is: %s", path, e)
    return True
