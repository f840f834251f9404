"""Delayed messages on disk: timer wheel, timer log and checkpoint (`store/timer/TimerMessageStore`).

An entry of the timer log refers to a record of the commit log. The entries of a slot form a chain, and the wheel has
the position of the last one. After a crash, the entries since the last checkpoint are added to the wheel again. One
thread calls all methods except `flush`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from gantrymq.errors import StoreError, SyncFailed
from gantrymq.protocol.java import string_hash_code
from gantrymq.store.mapped_file import store_error
from gantrymq.store.refusal import Refusal
from gantrymq.store.timer_checkpoint import TimerCheckpoint, load_timer_checkpoint, save_timer_checkpoint
from gantrymq.store.timer_log import ENTRY_SIZE, MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerEntry, TimerLog
from gantrymq.store.timer_wheel import WINDOW_SLOTS, Slot, TimerWheel
from gantrymq.system import files

log = logging.getLogger(__name__)

_WHEEL = "timerwheel"
#: `TimerMessageStore.TIMER_BLANK_SLOTS`
_BLANK_SLOTS = 60


class Wait(NamedTuple):
    """The slot in which a record waits, in milliseconds. If `is_rolled`, the record waits again after this slot."""

    slot_ms: int
    is_rolled: bool = False


class TimerStore:
    """The timer's files under a store's root, created with the first message. Slots are `precision_ms` long."""

    def __init__(self, root: Path, precision_ms: int, roll_window_slots: int, log_file_size: int) -> None:
        #: Time of the first slot that isn't delivered yet, in milliseconds.
        self.read_time_ms = 0
        #: The queue offset of the next message that isn't in the timer log yet.
        self.queue_offset = 0
        #: From the checkpoint at startup. Messages before this queue offset whose slots are before this time (in
        #: milliseconds) have been delivered, by this broker or a former master.
        self.delivered_queue_offset = 0
        self.delivered_time_ms = 0
        #: Number of messages in slots that aren't delivered yet.
        self.waiting = 0
        self._precision_ms = precision_ms
        if not 2 <= roll_window_slots <= WINDOW_SLOTS - _BLANK_SLOTS:
            roll_window_slots = WINDOW_SLOTS - _BLANK_SLOTS
        self._roll_window_slots = roll_window_slots
        self._root = root
        self._log_file_size = log_file_size
        self._wheel = TimerWheel(root / _WHEEL, precision_ms)
        self._log = TimerLog(root / "timerlog", log_file_size)
        self._checkpoint_path = root / "config" / "timercheck"
        self._checkpoint = TimerCheckpoint()
        #: Times of slots with messages, in milliseconds: as a heap, and with their number of messages.
        self._due: list[int] = []
        self._due_slots: dict[int, int] = {}
        #: Physical offsets of records that are already in the timer log, but may be at or after `queue_offset`.
        self._already: set[int] = set()
        #: The reason why no further checkpoint may be written.
        self._failure: Refusal | None = None

    def read_to(self, queue_offset: int) -> None:
        """Sets the offset of the timer topic before which all messages are on the wheel or delivered."""
        self.queue_offset = queue_offset

    def open(self, log_end: int, now_ms: int) -> None:
        """Recovers the timer's files. `log_end` is the end of the commit log. Raises StoreError."""
        try:
            self._wheel.open()
            self._log.open()
            now_ms -= now_ms % self._precision_ms
            checkpoint = self._load_checkpoint(now_ms)
            self._checkpoint = checkpoint
            self.queue_offset = checkpoint.queue_offset
            self.delivered_queue_offset = max(checkpoint.queue_offset, checkpoint.masters_queue_offset)
            self.delivered_time_ms = checkpoint.read_time_ms
            # Without a checkpoint, the slots of the past week count as not delivered.
            self.read_time_ms = checkpoint.read_time_ms or now_ms - self.window_ms
            self._recover(checkpoint, log_end)
        except BaseException as e:
            self.close()
            if isinstance(e, OSError):
                raise StoreError(f"can't use {self._log.directory}: {e}") from e
            raise

    @property
    def window_ms(self) -> int:
        """The largest time by which pending messages may be overdue, in milliseconds."""
        return (WINDOW_SLOTS - _BLANK_SLOTS) * self._precision_ms

    def _load_checkpoint(self, now_ms: int) -> TimerCheckpoint:
        # The clock may have been set back, or the checkpoint is from another machine. The tolerance is one window.
        return load_timer_checkpoint(self._checkpoint_path, now_ms + self.window_ms)

    def _recover(self, checkpoint: TimerCheckpoint, log_end: int) -> None:
        flushed = checkpoint.log_flush_position
        if flushed > 0 and not self._log.position:
            log.error(
                "%s is gone: the timer messages that waited, which are before the queue offset %d of their topic, are "
                "not delivered any more",
                self._log.directory,
                self.queue_offset,
            )
        start = end = self._log.nearest(flushed)
        for place, entry in self._log.entries(start):
            if entry.physical_offset + entry.size > log_end:
                # A power failure destroyed the record.
                break
            end = place + ENTRY_SIZE
            self._already.add(entry.physical_offset)
            if checkpoint.read_time_ms and place >= flushed:
                # The slot of an entry after the checkpoint can be earlier if the clock was set back.
                self.read_time_ms = min(self.read_time_ms, entry.slot_ms)
        self._log.start_at(end)
        if end > self._log.first and next(self._wheel.slots_from(0), None) is None:
            log.error("the timer wheel is empty, the timer log isn't: what waits is sorted in anew")
            start = self._log.first
        for slot in self._wheel.slots_from(self.read_time_ms):
            if slot.last < end:
                self._count(slot.time_ms, slot.num)
            else:
                log.warning("the timer wheel points to %d, the timer log ends at %d: mending it", slot.last, end)
                start = min(start, slot.first)
                self._wheel.put(Slot(slot.time_ms, -1, -1, 0))
        for place, entry in self._log.entries(self._log.nearest(start)):
            if entry.slot_ms >= self.read_time_ms:
                self._link(place, entry)

    def close(self) -> None:
        self._wheel.close()
        self._log.close()

    def begin_anew(self, log_end: int, now_ms: int) -> None:
        """Discards all pending messages on a slave. They are added again from its copy of the master's log.

        Messages that were delivered according to the last checkpoint still count as delivered. Raises StoreError.
        """
        self.close()
        try:
            files.unlink(self._root / _WHEEL, missing_ok=True)
            if files.exists(self._log.directory):
                files.remove_tree(self._log.directory)
            known = self._load_checkpoint(now_ms)
            done = max(known.queue_offset, known.masters_queue_offset)
            self.keep(known._replace(log_flush_position=0, queue_offset=0, masters_queue_offset=done))
        except OSError as e:
            raise store_error(e, f"can't begin {self._log.directory} anew") from e
        self.reopen(log_end, now_ms)

    def reopen(self, log_end: int, now_ms: int) -> None:
        """Closes and opens the files, as at startup. Raises StoreError."""
        self.close()
        self._due, self._due_slots, self._already, self.waiting = [], {}, set(), 0
        self._wheel = TimerWheel(self._root / _WHEEL, self._precision_ms)
        self._log = TimerLog(self._log.directory, self._log_file_size)
        self.open(log_end, now_ms)

    # -- adding messages ----------------------------------------------------------------------------------------

    def wait(self, due_ms: int, from_ms: int) -> Wait:
        """Returns the slot for a record that is due at `due_ms`. It is at most one roll window after `from_ms`."""
        precision_ms, window = self._precision_ms, self._roll_window_slots
        from_ms -= from_ms % precision_ms
        over_ms = due_ms - from_ms - window * precision_ms
        is_rolled = over_ms >= 0
        if is_rolled:
            # Avoids a short last round.
            slots = window // 2 if over_ms < window // 3 * precision_ms else window
            due_ms = from_ms + slots * precision_ms
        return Wait(due_ms - due_ms % precision_ms, is_rolled)

    def add(
        self, wait: Wait, now_ms: int, physical_offset: int, size: int, topic: str, *, takes_back: bool = False
    ) -> None:
        """Adds a record to its slot, or raises StoreFull or StoreError. With `takes_back`, it cancels a message."""
        magic = MAGIC_DEFAULT
        if wait.is_rolled:
            magic |= MAGIC_ROLL
        if takes_back:
            magic |= MAGIC_DELETE
        previous = self._wheel.get(wait.slot_ms).last
        write_ms = now_ms - now_ms % self._precision_ms
        entry = TimerEntry(previous, magic, write_ms, wait.slot_ms, physical_offset, size, string_hash_code(topic))
        self._link(self._log.append(entry), entry)

    def _link(self, place: int, entry: TimerEntry) -> None:
        """Makes an entry the last one in its slot's chain, unless it is in the chain already."""
        slot = self._wheel.get(entry.slot_ms)
        if slot.last < place:
            first = place if slot.first < 0 else slot.first
            num = slot.num + entry.messages
            self._wheel.put(Slot(slot.time_ms, first, place, num))
            if slot.time_ms in self._due_slots:
                self._due_slots[slot.time_ms] = num
                self.waiting += entry.messages
            else:
                # The slot was delivered, and is due again because the clock was set back. All its messages count.
                self._count(slot.time_ms, num)

    def _count(self, slot_ms: int, count: int) -> None:
        heapq.heappush(self._due, slot_ms)
        self._due_slots[slot_ms] = count
        self.waiting += count

    def was_added(self, physical_offset: int) -> bool:
        """Returns whether `open` found a record in the timer log. Call it once per record from `queue_offset` on."""
        if physical_offset in self._already:
            self._already.remove(physical_offset)
            return True
        return False

    def all_added(self) -> None:
        """Ends the checks with `was_added`, because all messages of the queue are in the timer log."""
        self._already.clear()

    def number_at(self, due_ms: int) -> int:
        """Returns the number of messages in the slot of `due_ms`."""
        return self._wheel.get(due_ms).num

    # -- delivering messages ------------------------------------------------------------------------------------

    @property
    def next_ms(self) -> int | None:
        """The time of the first slot with messages, in milliseconds; None if no message waits."""
        return self._due[0] if self._due else None

    def chain(self, slot_ms: int) -> Iterator[tuple[int, TimerEntry]]:
        """Yields (position, entry) for the entries of a slot, newest first."""
        place = self._wheel.get(slot_ms).last
        while place >= 0:
            entry = self._log.read(place)
            if entry is None:
                log.error("the timer log has no entry at %d: what else was due at %d ms is lost", place, slot_ms)
                return
            yield place, entry
            # The position always decreases, so that a damaged entry can't cause an endless loop.
            place = min(entry.previous, place - ENTRY_SIZE)

    def number_due(self, start_ms: int, end_ms: int) -> int:
        """Returns the number of waiting messages in the slots from `start_ms` on and before `end_ms`."""
        if not self.waiting:
            return 0
        precision_ms = self._precision_ms
        slots = range(start_ms - start_ms % precision_ms, end_ms - end_ms % precision_ms, precision_ms)
        # Takes 0.17 us for each slot.
        return sum(map(self._due_slots.get, slots, repeat(0)))

    def entries(self) -> Iterator[TimerEntry]:
        """Yields all waiting entries. Slots are in no particular order."""
        for slot_ms in self._due:
            for _, entry in self.chain(slot_ms):
                yield entry

    def entry(self, place: int) -> TimerEntry | None:
        """Returns the entry at a position that `chain` returned; None if it no longer exists."""
        entry = self._log.read(place)
        if entry is None:
            log.error("the timer log has no entry at %d any more: its message is lost", place)
        return entry

    def pass_slot(self) -> None:
        """Marks the first slot as delivered. Raises OSError; the slot then stays the first one."""
        slot_ms = self._due[0]
        self.waiting -= self._wheel.get(slot_ms).num
        heapq.heappop(self._due)
        del self._due_slots[slot_ms]
        self.read_time_ms = slot_ms + self._precision_ms

    def pass_until(self, now_ms: int) -> None:
        """Marks all slots before the current one as delivered."""
        self.read_time_ms = max(self.read_time_ms, now_ms - now_ms % self._precision_ms)

    def is_ahead_of(self, now_ms: int) -> bool:
        """Returns whether slots after `now_ms` have been delivered, because the clock was set back."""
        return self.read_time_ms > now_ms

    def set_back(self, now_ms: int) -> None:
        """Makes the slot of `now_ms` the next slot to deliver, for messages that arrive after this call."""
        self.read_time_ms = now_ms - now_ms % self._precision_ms

    def is_too_far_behind(self, now_ms: int) -> bool:
        """Returns whether overdue messages must be delivered before more are added.

        Otherwise the wheel would overwrite their slots.
        """
        return now_ms - self.read_time_ms >= WINDOW_SLOTS * self._precision_ms

    # -- checkpoint ---------------------------------------------------------------------------------------------

    def checkpoint(self, now_ms: int) -> TimerCheckpoint:
        """Returns a checkpoint that may be written after log and wheel are flushed."""
        # The next start must find the records in `_already` again.
        flushed = self._checkpoint.log_flush_position if self._already else self._log.position
        return TimerCheckpoint(self.read_time_ms, flushed, self.queue_offset, now_ms, self._checkpoint.counter + 1)

    @property
    def is_used(self) -> bool:
        """Whether the timer ever had a message."""
        return self.queue_offset > 0 or self._log.position > 0

    def flush(self, checkpoint: TimerCheckpoint) -> None:
        """Flushes log, wheel and checkpoint to disk. Any thread may call this. Raises StoreError.

        Call it only after delivered messages are on disk, so that a power failure can't lose them. After a SyncFailed,
        nothing else counts as flushed. The next start then adds all entries since the previous checkpoint again.
        """
        if self._failure is not None:
            raise self._failure.exception()
        try:
            self._log.flush(self._checkpoint.log_flush_position)
            self._wheel.flush()
            save_timer_checkpoint(self._checkpoint_path, checkpoint)
        except SyncFailed as e:
            self._failure = Refusal(f"{e}; the timer's state is not saved until the broker is restarted", SyncFailed)
            raise self._failure.exception() from e
        except OSError as e:
            raise store_error(e, "can't bring the timer to the disk") from e
        self._checkpoint = checkpoint

    def keep(self, masters: TimerCheckpoint) -> None:
        """Stores the master's progress, for a slave that may become master. Thread-safe. Raises StoreError."""
        try:
            save_timer_checkpoint(self._checkpoint_path, masters)
        except OSError as e:
            raise store_error(e, f"can't write {self._checkpoint_path}") from e

    def delete_before(self, min_physical_offset: int) -> None:
        """Deletes the timer log files whose records the commit log no longer has. Raises StoreError."""
        try:
            self._log.delete_before(min_physical_offset)
        except OSError as e:
            raise store_error(e, f"can't delete files of {self._log.directory}") from e
