"""What one queue of the revive log says, as far as it is read: which pops are to come back, and when.

Checkpoints wait here until the log is past their time, so that their acknowledgements have been read. Not more of them
than `limit` are in memory, however many the log has for the same moment. When there are so many, only acknowledgements
are read from there on, until all that wait have come back; then reading goes on where it was left, with the next ones.

The alternative that lost: to keep all checkpoints until their acknowledgements are read, as Java does for what it reads
in ten seconds. After a standstill that is the whole log.

Plain, told the time in ms.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass

from gantrymq.broker.pop.revive_log import CHECKPOINT_LEAD_MS
from gantrymq.protocol.bodies.pop import Ack, Checkpoint, PopKey

#: Checkpoints of one queue in memory; about 6 MB.
LIMIT = 8192
#: The log must be past a checkpoint's time by so much: its acknowledgements are delivered at that time, to the second.
_ACK_GRACE_MS = 2000
#: A log that brought nothing for so long is past every time before.
_IDLE_MS = 3000


@dataclass(slots=True)
class WaitingPop:
    """A checkpoint of the log; `offset` is that of its record there, `acked` has a bit for each of its messages."""

    checkpoint: Checkpoint
    offset: int
    revive_ms: int
    acked: int

    def next_unacked(self) -> tuple[int, int] | None:
        """(place in the checkpoint, queue offset) of the first message that isn't acknowledged."""
        for place, offset in enumerate(self.checkpoint.offsets):
            if not self.acked >> place & 1:
                return place, offset
        return None


class ReviveQueue:
    """One queue of the revive log; all before `next_offset` is read."""

    def __init__(self, next_offset: int, now_ms: int, limit: int = LIMIT) -> None:
        self.next_offset = next_offset
        self._limit = limit
        #: When something was read last.
        self._read_ms = now_ms
        #: All records are read that were to be delivered by then.
        self._log_ms = 0
        self._waiting: OrderedDict[PopKey, WaitingPop] = OrderedDict()
        #: While only acknowledgements are read: where, and what `_log_ms` is where the other reading was left.
        self._ahead: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def read_offset(self) -> int:
        """Where to read."""
        return self.next_offset if self._ahead is None else self._ahead[0]

    @property
    def wants_checkpoints(self) -> bool:
        """Whether checkpoints are to be taken, else only acknowledgements."""
        return self._ahead is None

    def take_checkpoint(self, checkpoint: Checkpoint, offset: int, stored_ms: int) -> None:
        """`stored_ms`: when its record was stored, not long before its messages are to come back, whatever it says."""
        checkpoint.topic = sys.intern(checkpoint.topic)
        checkpoint.group = sys.intern(checkpoint.group)
        checkpoint.broker_name = sys.intern(checkpoint.broker_name)
        revive_ms = min(checkpoint.revive_time, stored_ms + CHECKPOINT_LEAD_MS)
        waiting = WaitingPop(checkpoint, offset, revive_ms, checkpoint.bit_map & 0xFFFFFFFF)
        self._waiting.setdefault(checkpoint.key, waiting)

    def take_ack(self, ack: Ack) -> None:
        """An acknowledgement of a checkpoint that isn't here came too late, or comes once more."""
        waiting = self._waiting.get(ack.key)
        if waiting is None:
            return
        places = waiting.checkpoint.offsets
        for offset in ack.offsets or [ack.offset]:
            if offset in places:
                waiting.acked |= 1 << places.index(offset)

    def read_to(self, offset: int, deliver_ms: int, now_ms: int) -> None:
        """All before `offset` is read; the last record was to be delivered at `deliver_ms`."""
        self._read_ms = now_ms
        self._log_ms = max(self._log_ms, deliver_ms)
        if self._ahead is not None:
            self._ahead = offset, self._ahead[1]
            return
        self.next_offset = offset
        if len(self._waiting) >= self._limit:
            self._ahead = offset, self._log_ms

    def due(self, now_ms: int) -> WaitingPop | None:
        """The checkpoint to bring back next, the oldest in the log, if its time has come."""
        if not self._waiting:
            return None
        if now_ms - self._read_ms >= _IDLE_MS:
            self._log_ms = max(self._log_ms, now_ms)
        first = next(iter(self._waiting.values()))
        return None if self._log_ms - first.revive_ms <= _ACK_GRACE_MS else first

    def done(self, waiting: WaitingPop) -> None:
        del self._waiting[waiting.checkpoint.key]
        if self._ahead is not None and not self._waiting:
            self._log_ms = self._ahead[1]
            self._ahead = None

    @property
    def committed(self) -> int:
        """The offset of the last record that is done with."""
        first = next(iter(self._waiting.values()), None)
        return (self.next_offset if first is None else first.offset) - 1
