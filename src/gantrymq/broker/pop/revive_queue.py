"""The state of one queue of the revive log: the checkpoints that have been read and are not revived yet.

A checkpoint waits until the log has been read past its time. All its acknowledgements are then known. If the log ends
earlier, the checkpoint waits until the timer has delivered all records that are due, as in `consumeReviveMessage`.

At most `limit` checkpoints are in memory. At the limit, only acknowledgements are read until all these checkpoints are
revived. Then reading continues from the offset at which the limit was reached. Java keeps all checkpoints that it reads
in ten seconds, which can be the whole log after a downtime.

The caller passes the current time, in ms.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass

from gantrymq.broker.pop.revive_log import CHECKPOINT_LEAD_MS
from gantrymq.protocol.bodies.pop import Ack, Checkpoint, PopKey

#: Largest number of checkpoints of one queue in memory. They use about 6 MB.
LIMIT = 8192
#: A checkpoint waits until the log is read this far past its time, in ms, because the timer is exact only to a second.
_ACK_GRACE_MS = 2000


@dataclass(slots=True)
class WaitingPop:
    """A checkpoint that waits for its time. `offset` is its record's offset; `acked` has a bit for each message."""

    checkpoint: Checkpoint
    offset: int
    revive_ms: int
    acked: int

    def next_unacked(self) -> tuple[int, int] | None:
        """Returns (index in the checkpoint, queue offset) of the first unacknowledged message, or None."""
        for place, offset in enumerate(self.checkpoint.offsets):
            if not self.acked >> place & 1:
                return place, offset
        return None


class ReviveQueue:
    """The state of one queue of the revive log. All records before `next_offset` have been read."""

    def __init__(self, next_offset: int, limit: int = LIMIT) -> None:
        self.next_offset = next_offset
        self._limit = limit
        #: All records with a delivery time up to this one have been read, if this time is not in the future.
        self._log_ms = 0
        self._waiting: OrderedDict[PopKey, WaitingPop] = OrderedDict()
        #: While only acknowledgements are read: the next offset to read, and `_log_ms` at the limit. Otherwise None.
        self._ahead: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def read_offset(self) -> int:
        """The offset of the next record to read."""
        return self.next_offset if self._ahead is None else self._ahead[0]

    @property
    def wants_checkpoints(self) -> bool:
        """True if the caller should add checkpoints; False if it should add only acknowledgements."""
        return self._ahead is None

    def take_checkpoint(self, checkpoint: Checkpoint, offset: int, stored_ms: int) -> None:
        """Adds a checkpoint. `offset` is the offset of its record.

        A valid checkpoint's time is shortly after the time `stored_ms`, at which its record was stored. A later time is
        reduced accordingly.
        """
        checkpoint.topic = sys.intern(checkpoint.topic)
        checkpoint.group = sys.intern(checkpoint.group)
        checkpoint.broker_name = sys.intern(checkpoint.broker_name)
        revive_ms = min(checkpoint.revive_time, stored_ms + CHECKPOINT_LEAD_MS)
        waiting = WaitingPop(checkpoint, offset, revive_ms, checkpoint.bit_map & 0xFFFFFFFF)
        self._waiting.setdefault(checkpoint.key, waiting)

    def take_ack(self, ack: Ack) -> None:
        """Records an acknowledgement. Ignores late and repeated ones, whose checkpoint is not in memory."""
        waiting = self._waiting.get(ack.key)
        if waiting is None:
            return
        places = waiting.checkpoint.offsets
        for offset in ack.offsets or [ack.offset]:
            if offset in places:
                waiting.acked |= 1 << places.index(offset)

    def read_to(self, offset: int, deliver_ms: int) -> None:
        """Sets `offset` as the next offset to read. `deliver_ms` is the delivery time of the record before it."""
        self._log_ms = max(self._log_ms, deliver_ms)
        if self._ahead is not None:
            self._ahead = offset, self._ahead[1]
            return
        self.next_offset = offset
        if len(self._waiting) >= self._limit:
            self._ahead = offset, self._log_ms

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the oldest checkpoint is due if the log is complete then; None if none waits."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.revive_ms + _ACK_GRACE_MS + 1

    def due(self, now_ms: int, *, is_complete: bool = False) -> WaitingPop | None:
        """Returns the oldest checkpoint if it is due, or None.

        `is_complete` means that all records whose delivery is due at `now_ms` have been read.
        """
        if not self._waiting:
            return None
        # A time in the future is from before the clock was set back: records of times up to it can still be written.
        self._log_ms = now_ms if is_complete else min(self._log_ms, now_ms)
        first = next(iter(self._waiting.values()))
        return None if self._log_ms - first.revive_ms <= _ACK_GRACE_MS else first

    def done(self, waiting: WaitingPop) -> None:
        """Removes a checkpoint whose messages are all acknowledged or revived."""
        del self._waiting[waiting.checkpoint.key]
        if self._ahead is not None and not self._waiting:
            self._log_ms = self._ahead[1]
            self._ahead = None

    @property
    def committed(self) -> int:
        """The offset of the last completed record; -1 if there is none."""
        first = next(iter(self._waiting.values()), None)
        return (self.next_offset if first is None else first.offset) - 1
