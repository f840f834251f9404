"""The file `checkpoint`: up to where log and queues are surely on the disk (`store/StoreCheckpoint`).

    int64 physicMsgTimestamp | logicsMsgTimestamp | indexMsgTimestamp | masterFlushedOffset | confirmPhyOffset

Both timestamps are store timestamps in ms. After a crash Java begins recovery in the file whose first record is older
than both; we begin at confirmPhyOffset where that is later. Java itself writes there the last record that its recovery
found.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

_FIELDS = Struct(">5q")
_FILE_SIZE = 4096
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
    """The file's content; zeros, which claim nothing, where there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    return Checkpoint(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else Checkpoint()


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrites the file; on return it is on the disk."""
    data = _FIELDS.pack(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
    )
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # In place, as Java does it: 40 bytes don't straddle a sector.
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, _FILE_SIZE)
        os.fsync(fd)
    finally:
        os.close(fd)
