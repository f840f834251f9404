"""The file `checkpoint`: the position up to which log and queues are on disk (`store/StoreCheckpoint`).

    int64 physicMsgTimestamp | logicsMsgTimestamp | indexMsgTimestamp | masterFlushedOffset | confirmPhyOffset

The timestamps are store timestamps in milliseconds. After a crash, Java starts recovery in the last file whose first
record is older than the first two timestamps. GantryMQ starts at confirmPhyOffset if that is later. In that field, Java
stores the offset of the last record that its recovery found.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from gantrymq.store.mapped_file import put_aside, store_error
from gantrymq.system import files

log = logging.getLogger(__name__)

_FIELDS = Struct(">5q")
_FILE_SIZE = 4096
_WRITE = files.O_RDWR | files.O_CREAT | files.O_CLOEXEC
#: A later timestamp is invalid.
_LATEST_MS = 1 << 48
#: `StoreCheckpoint.getMinTimestamp` subtracts this time, because timestamps may be out of order.
_SLACK_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    """The content of the file `checkpoint`; see the module."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """The store timestamp in milliseconds up to which all messages are on disk."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SLACK_MS)


def load_checkpoint(path: Path) -> Checkpoint:
    """Returns the content of the file; zeros if the file is missing or damaged.

    Zeros mean that no data is certain to be on disk. Raises StoreError if the file can't be read.
    """
    data = read_checkpoint(path)
    if data is None:
        return Checkpoint()
    if len(data) >= _FIELDS.size:
        values = _FIELDS.unpack_from(data)
        if min(values) >= 0 and max(values[:3]) <= _LATEST_MS:
            return Checkpoint(*values)
    log.error("%s is damaged: a recovery reads the log from further back", path)
    return Checkpoint()


def read_checkpoint(path: Path) -> bytes | None:
    """Returns the bytes of a checkpoint file; None if it doesn't exist, b"" if it is a directory.

    Raises StoreError if it can't be read.
    """
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return b""
    except OSError as e:
        raise store_error(e, f"can't read {path}") from e


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrites the file and flushes it to disk."""
    data = _FIELDS.pack(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
    )
    write_checkpoint(path, data)


def write_checkpoint(path: Path, data: bytes) -> None:
    """Overwrites a checkpoint file and flushes it to disk. A directory in its place gets the suffix `.damaged`."""
    try:
        fd = files.open(path, _WRITE, 0o644)
    except IsADirectoryError:
        put_aside(path)
        fd = files.open(path, _WRITE, 0o644)
    try:
        # Written in place, as in Java: these few bytes fit into one disk sector.
        files.pwrite(fd, data, 0)
        files.ftruncate(fd, _FILE_SIZE)
        files.fsync(fd)
    finally:
        files.close(fd)
