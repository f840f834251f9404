"""TimerProgress: determines by slot time and physical offset whether a timer message has been delivered.

A mark is a pair of a time and an offset. Messages that were stored before the offset are delivered if their slot is
before the time. While the clock runs forward, one mark is enough.

If the clock is set back, messages that are stored later can have a slot before the time of this mark, but are not
delivered yet. There can therefore be several marks. Each later mark has an earlier time.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.append import Appender
from gantrymq.broker.delay.delivery_journal import TIMER_QUEUE, DeliveryJournal, JournalEntry
from gantrymq.store.message_store import PutResult

#: (time in ms, physical offset): messages before the offset are delivered if their slot is before the time.
Mark = tuple[int, int]


class _TimerEntry(JournalEntry):
    """A timer journal entry. `marks` are the progress at its time. The slots of `sources` are before `time_ms`."""

    marks: list[Mark]
    time_ms: int


class TimerProgress:
    """The journal of one broker's timer, and the marks since the start: one, and one each time the clock was set back.

    Later progress is in the timer's files (`TimerStore`).
    """

    def __init__(self, appender: Appender) -> None:
        self._journal = DeliveryJournal(appender, TIMER_QUEUE, _TimerEntry)
        self._store = appender.store
        self._marks: list[Mark] = []

    def begin(self, checkpoint: Mark) -> None:
        """Sets the progress from the checkpoint and from the newest journal entry. Raises StoreError."""
        marks = [checkpoint]
        last = self._journal.last()
        if last is not None:
            entry, delivered = last
            marks += entry.marks
            if delivered:
                marks.append((entry.time_ms, entry.sources[delivered - 1] + 1))
        self._marks = _without_needless(marks)

    def is_journaled(self) -> bool:
        """Returns whether the log has a journal entry. Raises StoreError."""
        return self._journal.last() is not None

    def add(self, mark: Mark) -> None:
        """Adds `mark` to the progress."""
        self._marks = _without_needless([*self._marks, mark])

    def delivered_before(self, slot_ms: int) -> int:
        """Returns the physical offset before which all messages of a slot are delivered."""
        return max((offset for time_ms, offset in self._marks if slot_ms < time_ms), default=0)

    def announce(self, source: int, time_ms: int, marks: list[Mark], sources: Callable[[], list[int]]) -> None:
        """Stores a journal entry, unless the newest entry contains the message. Call it before each delivery.

        Args:
            source: Physical offset of the message.
            time_ms: Time after the slot of the message, in ms. The entry gets the mark (`time_ms`, `source`).
            marks: Marks of the entry in addition to the known marks.
            sources: Returns the physical offsets of this message and of the next messages.

        Raises as `Appender.append` does.
        """
        if not self._journal.announces(source):
            oldest = self._store.min_physical_offset
            known = [mark for mark in self._marks if mark[1] > oldest]
            marks = _without_needless([*known, *marks, (time_ms, source)])
            self._journal.announce(_TimerEntry(sources=sources(), marks=marks, time_ms=time_ms))

    def delivered(self, put: PutResult) -> None:
        """Records that the announced message was stored as `put`."""
        self._journal.delivered(put)


def _without_needless(marks: list[Mark]) -> list[Mark]:
    """Returns the marks that no other mark includes, the latest time first."""
    found: list[Mark] = []
    for mark in sorted(marks, reverse=True):
        if mark[1] > (found[-1][1] if found else 0):
            found.append(mark)
    return found
