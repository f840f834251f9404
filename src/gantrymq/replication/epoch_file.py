"""EpochFile: a log's epochs on the disk, `epochFileCheckpoint` in the store's directory."""

from __future__ import annotations

from pathlib import Path

from gantrymq.config import replace_file
from gantrymq.errors import ConfigError, ReplicationError, StoreError
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.system import files

#: Java's name (`MessageStoreConfig.getStorePathEpochFile`).
NAME = "epochFileCheckpoint"


class EpochFile:
    """Of the store in `root`; `epochs` are what `load` found, and what `save` writes."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        self.epochs = Epochs()

    def load(self, log_end: int) -> None:
        """Reads the file, if there is one; epochs that begin behind the log's end went with it. Raises StoreError."""
        try:
            text = files.read_bytes(self._path).decode() if files.exists(self._path) else ""
        except (OSError, UnicodeDecodeError) as e:
            raise StoreError(f"can't read {self._path}: {e}") from e
        self.epochs = Epochs.decode(text) if text else Epochs()
        self.epochs.truncate_from(log_end + 1)

    def begin(self, number: int, log_end: int) -> None:
        """The broker becomes master: its log has another epoch from here on.

        Raises ReplicationError when the log has one that isn't older: another was elected since, or before.
        """
        last = self.epochs.last
        if not self.append(Epoch(number, log_end)):
            raise ReplicationError(f"this log has an epoch {last.number if last else 0}: {number} is no later one")

    def append(self, epoch: Epoch) -> bool:
        """The log has one more epoch, whose bytes may come now; False where it is no later one.

        Raises StoreError when that can't be kept; then the log hasn't got it.
        """
        before = self.epochs.all()
        if not self.epochs.append(epoch):
            return False
        try:
            self.save()
        except StoreError:
            self.epochs.put_back(before)
            raise
        return True

    def save(self) -> None:
        """Writes the file; on return it is on the disk. Raises StoreError."""
        try:
            replace_file(self._path, self.epochs.encode().encode())
        except ConfigError as e:
            raise StoreError(str(e)) from e
