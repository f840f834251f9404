"""An index of the ended half messages that op messages list. Entries that are no longer needed are removed."""

from __future__ import annotations

from collections import OrderedDict

from gantrymq.broker.transaction.ended_half_messages import EndedHalfMessages
from gantrymq.broker.transaction.op_messages import OpMessages

#: Largest number of ended half messages that `step_over` skips in one call.
_STEPS = 4096


class OpMessageIndex:
    """Stores the ended half messages from `half_offset` on. All half messages before it are processed.

    Half messages whose op message is not written yet are in `ops`.
    """

    def __init__(self, ops: OpMessages) -> None:
        self._ops = ops
        self.half_offset = 0
        #: Op queue offset before which all op messages have been read.
        self.op_read = 0
        #: Half offset -> op message that lists it, for the half messages from `half_offset` on.
        self._ended = EndedHalfMessages()
        #: As `_ended`, for half messages that ended after a round had passed them.
        self._ended_late: dict[int, int] = {}
        #: Op message -> number of its half offsets in `_ended` and `_ended_late`. Oldest op message first.
        self._waiting_for: OrderedDict[int, int] = OrderedDict()
        #: First queue offset of a copied half message -> queue offset of its newest copy. A producer may use either
        #: offset. The rounds have already passed copies whose offset is before `half_offset`.
        self._copies: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of ended half messages in memory."""
        return len(self._ended) + len(self._ended_late)

    def read_to(self, op_offset: int) -> None:
        """Sets the offset before which all op messages have been read."""
        self.op_read = op_offset

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Removes all entries. The caller reads the op messages from `op_offset` on."""
        self._ended = EndedHalfMessages()
        for known in (self._ended_late, self._waiting_for, self._copies):
            known.clear()
        self.half_offset, self.op_read = half_offset, op_offset

    @property
    def first_op_offset(self) -> int:
        """The op queue offset before which no op message is needed."""
        return next(iter(self._waiting_for), self.op_read)

    def count_ahead(self) -> int:
        """Returns the number of ended half messages from `half_offset` on."""
        half_offset, ended = self.half_offset, self._ended
        return len(ended) + sum(1 for offset in self._ops if offset >= half_offset and offset not in ended)

    # -- op messages --------------------------------------------------------------------------------------------

    def note(self, op_offset: int, offsets: list[int]) -> None:
        """Records that an op message lists these half messages."""
        ahead = [offset for offset in offsets if offset >= self.half_offset]
        count = 0
        if len(ahead) < len(offsets):
            late = {offset for offset in offsets if offset < self.half_offset and offset not in self._ended_late}
            self._ended_late.update(dict.fromkeys(late, op_offset))
            count = len(late)
        count += self._ended.add_all(ahead, op_offset)
        if count:
            self._waiting_for[op_offset] = count

    def keep(self, op_offset: int) -> None:
        """Marks an op message as needed until `let_go`."""
        self._waiting_for[op_offset] = 1

    def let_go(self, op_offset: int) -> None:
        """Ends `keep`."""
        del self._waiting_for[op_offset]

    def _release(self, op_offset: int, count: int) -> None:
        """Reduces the number of needed half offsets of an op message by `count`. At 0, the op message is removed."""
        self._waiting_for[op_offset] -= count
        if not self._waiting_for[op_offset]:
            del self._waiting_for[op_offset]

    # -- half messages ------------------------------------------------------------------------------------------

    def has(self, half_offset: int) -> bool:
        """Returns True if a half message has ended. Unlike `take`, it removes no entry."""
        ended = self._ended if half_offset >= self.half_offset else self._ended_late
        return half_offset in ended or half_offset in self._ops

    def take(self, half_offset: int) -> bool:
        """Returns True if a half message has ended, and removes its entry, which is no longer needed."""
        return self._take_written(half_offset) or half_offset in self._ops

    def _take_written(self, half_offset: int) -> bool:
        """Like `take`, for half messages that a written op message lists."""
        is_ahead = half_offset >= self.half_offset
        op_offset = self._ended.pop(half_offset) if is_ahead else self._ended_late.pop(half_offset, None)
        if op_offset is not None:
            if is_ahead and half_offset in self._copies:
                self._ended_late[half_offset] = op_offset
            else:
                self._release(op_offset, 1)
        return op_offset is not None

    def _copied(self, start: int, end: int) -> list[int]:
        """Returns the half messages from `start` to `end` - 1 that have copies, which end with their original."""
        if len(self._copies) < end - start:
            return [first for first in self._copies if start <= first < end]
        return [first for first in range(start, end) if first in self._copies]

    def step_over(self) -> bool:
        """Moves `half_offset` over ended half messages, up to the first open one or the limit of a call.

        Returns True if it has moved. Half messages should be skipped only after their op message has been read:
        otherwise each one uses 65 bytes in `_ended_late` until the end of the round.
        """
        start = self.half_offset
        while self.half_offset < start + _STEPS:
            run = self._ended.pop_run(self.half_offset)
            if run is not None:
                end, op_offset = run
                copied = self._copied(self.half_offset, end)
                self._ended_late.update(dict.fromkeys(copied, op_offset))
                if len(copied) < end - self.half_offset:
                    self._release(op_offset, end - self.half_offset - len(copied))
                self.half_offset = end
            elif self._take_written(self.half_offset):
                self.half_offset += 1
            else:
                break
        return self.half_offset > start

    def pass_to(self, half_offset: int) -> None:
        """Sets `half_offset`. All half messages before it are processed, deleted or unreadable."""
        start = self.half_offset
        self.half_offset = half_offset
        self._ended_late.update(self._ended.pop_between(start, half_offset))

    def copied(self, queue_offset: int, first: int) -> None:
        """Records a copy of the half message that was first stored at `first`."""
        self._copies[first] = max(self._copies.get(first, -1), queue_offset)

    def is_passed(self, half_offset: int, first: int) -> bool:
        """Returns True if the rounds have passed a half message, first stored at `first`, and all its copies."""
        return max(half_offset, self._copies.get(first, -1)) < self.half_offset

    def forget_passed(self) -> None:
        """Removes half messages that ended after a round had passed them, unless a copy is still to come."""
        for first in [first for first, copy in self._copies.items() if copy < self.half_offset]:
            del self._copies[first]
        for offset in [offset for offset in self._ended_late if offset not in self._copies]:
            self.take(offset)
