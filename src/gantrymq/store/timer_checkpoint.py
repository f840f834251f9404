"""The file `config/timercheck`: the progress of the timer (`store/timer/TimerCheckpoint`).

    int64 lastReadTimeMs | lastTimerLogFlushPos | lastTimerQueueOffset | masterTimerQueueOffset
    | data version: int64 stateVersion | timestamp | counter

The response to GET_TIMER_CHECK_POINT has the same 56 bytes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import RecordError
from gantrymq.store.checkpoint import read_checkpoint, write_checkpoint
from gantrymq.system import files

log = logging.getLogger(__name__)

_FIELDS = Struct(">7q")


class TimerCheckpoint(NamedTuple):
    """The progress of the timer.

    All slots before `read_time_ms` are delivered. All messages before `queue_offset` are in the timer log.
    """

    read_time_ms: int = 0
    log_flush_position: int = 0
    queue_offset: int = 0
    #: Fields of the data version. Each change on a master increments the counter.
    timestamp: int = 0
    counter: int = 0
    #: On a slave: its master has delivered the messages before this queue offset that were due before `read_time_ms`.
    masters_queue_offset: int = 0

    def encode(self) -> bytes:
        """Returns the bytes of the file. A master's queue offset also applies to its slaves."""
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_flush_position,
            self.queue_offset,
            max(self.queue_offset, self.masters_queue_offset),
            0,
            self.timestamp,
            self.counter,
        )


def load_timer_checkpoint(path: Path, latest_ms: int) -> TimerCheckpoint:
    """Returns the content of the file; zeros if it is missing or invalid. Zeros mean that the progress is unknown.

    It is invalid if it is damaged, or if messages due after `latest_ms` would have been delivered. Raises StoreError if
    the file can't be read.
    """
    data = read_checkpoint(path)
    if data is None:
        return TimerCheckpoint()
    if len(data) >= _FIELDS.size:
        read_time_ms, log_flush_position, queue_offset, master, _, timestamp, counter = _FIELDS.unpack_from(data)
        if 0 <= read_time_ms <= latest_ms and min(log_flush_position, queue_offset, master) >= 0:
            masters = master if master > queue_offset else 0
            queue_offset = min(queue_offset, master)
            return TimerCheckpoint(read_time_ms, log_flush_position, queue_offset, timestamp, counter, masters)
    log.error("%s is damaged: timer messages that were delivered in the past week are delivered again", path)
    return TimerCheckpoint()


def of_slave(masters: bytes) -> TimerCheckpoint:
    """Converts a master's checkpoint for a slave, whose timer files are empty. Raises RecordError if it is invalid."""
    if len(masters) < _FIELDS.size:
        raise RecordError(f"a timer checkpoint of {len(masters)} bytes: it has {_FIELDS.size}")
    read_time_ms, _, queue_offset, _, _, timestamp, counter = _FIELDS.unpack_from(masters)
    if min(read_time_ms, queue_offset) < 0:
        raise RecordError(f"a timer checkpoint of {read_time_ms} ms, queue offset {queue_offset}")
    return TimerCheckpoint(read_time_ms, 0, 0, timestamp, counter, queue_offset)


def save_timer_checkpoint(path: Path, checkpoint: TimerCheckpoint) -> None:
    """Overwrites the file and flushes it to disk. Raises OSError."""
    files.make_directory(path.parent)
    write_checkpoint(path, checkpoint.encode())
