"""The file with a log's epochs, `epochFileCheckpoint` in the store's directory."""

from __future__ import annotations

from pathlib import Path

from gantrymq.config import replace_file
from gantrymq.errors import ConfigError, ReplicationError, StoreError
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.system import files

#: Name of the file in Java (`MessageStoreConfig.getStorePathEpochFile`).
NAME = "epochFileCheckpoint"


class EpochFile:
    """The epoch file of the store in `root`. `load` fills `epochs`, and `save` writes them."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        self.epochs = Epochs()

    def load(self, log_end: int) -> None:
        """Reads the file, if it exists. Drops epochs that begin after the end of the log. Raises StoreError."""
        try:
            text = files.read_bytes(self._path).decode() if files.exists(self._path) else ""
        except (OSError, UnicodeDecodeError) as e:
            raise StoreError(f"can't read {self._path}: {e}") from e
        self.epochs = Epochs.decode(text) if text else Epochs()
        self.epochs.truncate_from(log_end + 1)

    def begin(self, number: int, log_end: int) -> None:
        """Begins an epoch at the end of the log, because this broker has become master.

        Raises ReplicationError if the log already has this epoch or a newer one.
        """
        last = self.epochs.last
        if not self.append(Epoch(number, log_end)):
            raise ReplicationError(f"this log has an epoch {last.number if last else 0}: {number} is no later one")

    def append(self, epoch: Epoch) -> bool:
        """Adds an epoch and saves the file, before its first bytes are written. Returns false if it is not a newer one.

        Raises StoreError if the file cannot be written. The epoch is then not added.
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
        """Writes the file to disk and flushes it. Raises StoreError."""
        try:
            replace_file(self._path, self.epochs.encode().encode())
        except ConfigError as e:
            raise StoreError(str(e)) from e
