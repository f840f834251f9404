"""TimerProgress: which timer messages are delivered, by the time of their slot and by their place in the log.

As long as the clock goes on, one pair is enough: what was stored before a place and is due before a time is delivered.
When the clock was ahead and is set back, messages that are stored from then on may be due before that time, and wait
all the same. So there can be several pairs, the later ones with an earlier time.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.appender import Appender
from gantrymq.broker.delivery_journal import TIMER_QUEUE, DeliveryJournal, JournalEntry
from gantrymq.store.message_store import PutResult

#: (time, ms; physical offset): all that was stored before the offset is delivered if its slot is before the time.
Mark = tuple[int, int]


class _TimerEntry(JournalEntry):
    """`marks` hold when the entry is stored. The slots of `sources` are before `time_ms`."""

    marks: list[Mark]
    time_ms: int


class TimerProgress:
    """Of one broker, up to what it had delivered when it began or the clock was set back; and its journal."""

    def __init__(self, appender: Appender) -> None:
        self._journal = DeliveryJournal(appender, TIMER_QUEUE, _TimerEntry)
        self._store = appender.store
        self._marks: list[Mark] = []

    def begin(self, checkpoint: Mark) -> None:
        """Takes what the checkpoint says, and what the log has. Raises StoreError."""
        marks = [checkpoint]
        last = self._journal.last()
        if last is not None:
            entry, delivered = last
            marks += entry.marks
            if delivered:
                marks.append((entry.time_ms, entry.sources[delivered - 1] + 1))
        self._marks = _without_needless(marks)

    def is_journaled(self) -> bool:
        """Whether the log says what was delivered. Raises StoreError."""
        return self._journal.last() is not None

    def add(self, mark: Mark) -> None:
        """All that `mark` says is delivered."""
        self._marks = _without_needless([*self._marks, mark])

    def delivered_before(self, slot_ms: int) -> int:
        """The physical offset before which all messages of a slot are delivered."""
        return max((offset for time_ms, offset in self._marks if slot_ms < time_ms), default=0)

    def announce(self, source: int, time_ms: int, marks: list[Mark], sources: Callable[[], list[int]]) -> None:
        """To be called before a message is delivered: stores an entry, if the newest one doesn't name the message.

        `marks` hold by now, beside those that are known; `sources` gives this message and those that are next. All
        messages of their slots that are before them are delivered. Raises as `Appender.append` does.
        """
        if not self._journal.announces(source):
            oldest = self._store.min_physical_offset
            known = [mark for mark in self._marks if mark[1] > oldest]
            marks = _without_needless([*known, *marks, (time_ms, source)])
            self._journal.announce(_TimerEntry(sources=sources(), marks=marks, time_ms=time_ms))

    def delivered(self, put: PutResult) -> None:
        """The message that was announced is stored there."""
        self._journal.delivered(put)


def _without_needless(marks: list[Mark]) -> list[Mark]:
    """Those that say more than each other one, the latest time first."""
    found: list[Mark] = []
    for mark in sorted(marks, reverse=True):
        if mark[1] > (found[-1][1] if found else 0):
            found.append(mark)
    return found
