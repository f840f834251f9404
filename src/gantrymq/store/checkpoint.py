"""The file `checkpoint`: up to where log and queues are surely on the disk (`store/StoreCheckpoint`).

    int64 physicMsgTimestamp | logicsMsgTimestamp | indexMsgTimestamp | masterFlushedOffset | confirmPhyOffset

Both timestamps are store timestamps in ms. After a crash Java begins recovery in the file whose first record is older
than both; we begin at confirmPhyOffset where that is later. Java itself writes there the last record that its recovery
found.
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
#: No clock is right that is later than this.
_LATEST_MS = 1 << 48
#: `StoreCheckpoint.getMinTimestamp` allows for so much disorder of timestamps.
_SLACK_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """What was stored until then, ms, is on the disk."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SLACK_MS)


def load_checkpoint(path: Path) -> Checkpoint:
    """The file's content; zeros, which claim nothing, where there is none, or one that can't be right.

    Raises StoreError when it can't be read.
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
    """The bytes of a checkpoint's file; None where there is none. Raises StoreError when it can't be read."""
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        put_aside(path)
        return b""
    except OSError as e:
        raise store_error(e, f"can't read {path}") from e


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrites the file; on return it is on the disk."""
    data = _FIELDS.pack(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
    )
    write_checkpoint(path, data)


def write_checkpoint(path: Path, data: bytes) -> None:
    """Overwrites a checkpoint's file; on return it is on the disk."""
    fd = files.open(path, files.O_RDWR | files.O_CREAT | files.O_CLOEXEC, 0o644)
    try:
        # In place, as Java does it: so few bytes don't straddle a sector.
        files.pwrite(fd, data, 0)
        files.ftruncate(fd, _FILE_SIZE)
        files.fsync(fd)
    finally:
        files.close(fd)
