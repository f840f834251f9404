"""What is known of half messages that have ended: from op messages, as far as these are still needed."""

from __future__ import annotations

from gantrymq.broker.transaction.ended import EndedHalves
from gantrymq.broker.transaction.op_messages import OpMessages

#: Half messages known to be done with that are stepped over in one slice.
_STEPS = 4096


class KnownEnds:
    """Of the half messages from `half_offset` on: all before are dealt with. What ended just now is asked of `ops`."""

    def __init__(self, ops: OpMessages) -> None:
        self._ops = ops
        self.half_offset = 0
        #: All op messages before this one are known.
        self.op_read = 0
        #: Half offset -> the op message that names it: of those still ahead, and of those that were passed before.
        self._ended = EndedHalves()
        self._ended_late: dict[int, int] = {}
        #: Op message -> how many of its half offsets are in one of the two, the oldest first.
        self._waiting_for: dict[int, int] = {}
        #: First queue offset of a half message that was stored again -> queue offset of its newest copy. The producer
        #: may name either. The rounds have passed copies before `half_offset`.
        self._copies: dict[int, int] = {}

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Nothing is known; op messages are to be read from this one on."""
        self._ended = EndedHalves()
        for known in (self._ended_late, self._waiting_for, self._copies):
            known.clear()
        self.half_offset, self.op_read = half_offset, op_offset

    @property
    def first_op_offset(self) -> int:
        """All op messages before it are done with."""
        return next(iter(self._waiting_for), self.op_read)

    def count_ahead(self) -> int:
        """How many of the half messages ahead have ended."""
        half_offset, ended = self.half_offset, self._ended
        return len(ended) + sum(1 for offset in self._ops if offset >= half_offset and offset not in ended)

    # -- op messages --------------------------------------------------------------------------------------------

    def note(self, op_offset: int, offsets: list[int]) -> None:
        """An op message names these half messages."""
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
        """This op message is needed until `let_go`."""
        self._waiting_for[op_offset] = 1

    def let_go(self, op_offset: int) -> None:
        del self._waiting_for[op_offset]

    def _release(self, op_offset: int, count: int) -> None:
        """So many that an op message names needn't be known any more."""
        self._waiting_for[op_offset] -= count
        if not self._waiting_for[op_offset]:
            del self._waiting_for[op_offset]

    # -- half messages ------------------------------------------------------------------------------------------

    def has(self, half_offset: int) -> bool:
        """As `take`, but it stays known."""
        ended = self._ended if half_offset >= self.half_offset else self._ended_late
        return half_offset in ended or half_offset in self._ops

    def take(self, half_offset: int) -> bool:
        """Whether a half message is done with; if so, nothing more needs to be known of it."""
        return self._take_written(half_offset) or half_offset in self._ops

    def _take_written(self, half_offset: int) -> bool:
        """As `take`, if an op message says so."""
        is_ahead = half_offset >= self.half_offset
        op_offset = self._ended.pop(half_offset) if is_ahead else self._ended_late.pop(half_offset, None)
        if op_offset is not None:
            if is_ahead and half_offset in self._copies:
                self._ended_late[half_offset] = op_offset
            else:
                self._release(op_offset, 1)
        return op_offset is not None

    def _copied(self, start: int, end: int) -> list[int]:
        """The half messages between two offsets that were stored again. Their ends apply to the copies, too."""
        if len(self._copies) < end - start:
            return [first for first in self._copies if start <= first < end]
        return [first for first in range(start, end) if first in self._copies]

    def step_over(self) -> bool:
        """Up to the first one that no op message names, or some of the way; whether there were any.

        One that is passed before it is named would be noted as late, by itself, until the round's end: 65 bytes for
        each half message of a transaction with millions.
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
        """Goes on at a half message; those before it are dealt with, deleted, or can't be read."""
        start = self.half_offset
        self.half_offset = half_offset
        self._ended_late.update(self._ended.pop_between(start, half_offset))

    def copied(self, queue_offset: int, first: int) -> None:
        """Records a copy of the half message that was first stored at `first`."""
        self._copies[first] = max(self._copies.get(first, -1), queue_offset)

    def is_passed(self, half_offset: int, first: int) -> bool:
        """Whether the rounds have passed a half message, first stored at `first`, and all its copies."""
        return max(half_offset, self._copies.get(first, -1)) < self.half_offset

    def forget_passed(self) -> None:
        """Drops the ends of half messages that were passed before they ended, unless a copy is still ahead."""
        for first in [first for first, copy in self._copies.items() if copy < self.half_offset]:
            del self._copies[first]
        for offset in [offset for offset in self._ended_late if offset not in self._copies]:
            self.take(offset)
