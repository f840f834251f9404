"""Timer messages, step by step: from their queue onto the wheel, and from there to their real topic when due.

A plain state machine that is told the time. Each step is short, however many messages are due at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from sys import intern

from gantrymq.broker.appender import Appender, is_passing
from gantrymq.broker.delivery_journal import MAX_SOURCES
from gantrymq.broker.real_queue import real_queue
from gantrymq.broker.timer.message import NEVER_ENQUEUED, delete_keys, delivered_properties
from gantrymq.broker.timer.metrics import TimerMetrics
from gantrymq.broker.timer.progress import Mark, TimerProgress
from gantrymq.errors import GantryError, IllegalMessage, RecordError, StoreBusy, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import decode_properties, encode_fitting
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import TIMER_TOPIC, may_be_delivered_to
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.store.timer_log import MAGIC_ROLL, TimerEntry
from gantrymq.store.timer_store import TimerStore

log = peer_log(__name__)

#: So many entries of the timer log are read in one step, and so many bytes of records that take others back.
_ENTRIES = 200
_GATHERED_BYTES = 1024 * 1024
#: As long as the unique key of a message is, bytes.
_LONGEST_KEY = 32

#: What a message can do without where its properties have no room for more, first what was added last.
_ABOUT_WAITING = (names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS, names.TIMER_ROLL_TIMES)
_DONE_WITH = (*_ABOUT_WAITING, names.TIMER_OUT_MS, names.REAL_QUEUE_ID, names.REAL_TOPIC)


class Step(Enum):
    """What a step came to."""

    #: There is more to do.
    MORE = "MORE"
    #: The store takes nothing for now; the same is to be tried again.
    BLOCKED = "BLOCKED"
    #: A file of the store is being made; the same is to be tried again soon.
    NO_ROOM = "NO_ROOM"
    #: Nothing to do before the next slot's time, or the next message.
    IDLE = "IDLE"


#: (topic, delete key). Java looks at no topic, so that who may send to one takes back messages of another.
_DeleteKey = tuple[str, bytes]


def _delete_key(topic: str, key: str) -> _DeleteKey:
    """A client's key may have 32 KiB, and all of a slot's are held: of longer ones a digest is."""
    encoded = key.encode()
    return intern(topic), encoded if len(encoded) <= _LONGEST_KEY else blake2b(encoded, digest_size=16).digest()


@dataclass(slots=True)
class _Slot:
    """The slot that is being delivered, as far as that has got. It may have a million messages."""

    time_ms: int
    #: (place, entry) of what isn't looked at yet.
    chain: Iterator[tuple[int, TimerEntry]]
    #: The physical offset before which all its messages are delivered, by what was known before.
    delivered_before: int
    #: The progress before the first of them is delivered.
    mark: Mark
    is_gathered: bool = False
    #: Where the entries of messages are that aren't delivered yet, the first one to be last.
    places: array[int] = field(default_factory=lambda: array("q"))
    #: What is taken back, and whether its message was there.
    taken_back: dict[_DeleteKey, bool] = field(default_factory=dict)


class TimerDelivery:
    """Moves the messages of one broker. Counts since its start: `taken_in`, `delivered`, `skipped` (which are lost)."""

    def __init__(self, files: TimerStore, appender: Appender, metrics: TimerMetrics, precision_ms: int) -> None:
        self.taken_in = 0
        self.delivered = 0
        self.skipped = 0
        self._files = files
        self._appender = appender
        self._store = appender.store
        self._metrics = metrics
        self._precision_ms = precision_ms
        self._progress = TimerProgress(appender)
        self._now_ms = 0
        self._is_blocked = False
        self._slot: _Slot | None = None

    @property
    def is_delivering(self) -> bool:
        """In the midst of a slot."""
        return self._slot is not None

    def begin(self) -> None:
        """Reads what was delivered. To be called before the first step, and when the files are others.

        Raises StoreError.
        """
        self._slot = None
        self._is_blocked = False
        files = self._files
        self._progress.begin((files.delivered_time_ms, self._stored_before(files.delivered_queue_offset)))

    def is_journaled(self) -> bool:
        """Whether the log says what was delivered. Raises StoreError."""
        return self._progress.is_journaled()

    def _stored_before(self, queue_offset: int) -> int:
        """A physical offset behind all messages of the timer topic before this queue offset, and before all others."""
        queue = self.queue()
        if queue_offset >= queue.max_offset:
            # Not what comes: the queue may lack its end, whose offsets come again.
            return self._store.max_physical_offset
        unit = queue.unit(queue_offset)
        return 0 if unit is None or unit[1] == FILLER_SIZE else unit[0]

    def queue(self) -> ConsumeQueue:
        """Where timer messages go first."""
        return self._store.queue(TIMER_TOPIC, 0)

    def count_waiting(self, now_ms: int) -> None:
        """Counts by topic what waits on the wheel. A second for half a million messages."""
        topics: dict[int, str] = {}
        for entry in self._files.entries():
            if entry.topic_hash not in topics:
                record = self._record(entry.physical_offset, entry.size)
                if record is None:
                    continue
                topics[entry.topic_hash] = decode_properties(record.properties).get(names.REAL_TOPIC, "")
            self._metrics.add(topics[entry.topic_hash], entry.messages, now_ms)

    def due_ms(self) -> int | None:
        """When there is something to do without a new message; None: never."""
        next_ms = self._files.next_ms
        return None if next_ms is None else next_ms + self._precision_ms

    def step(self, now_ms: int) -> Step:
        """Does the next little piece of work.

        Raises StoreBusy while a file of the store is made, StoreError or OSError when files can't be read; the next
        step begins where this one failed.
        """
        self._now_ms = now_ms
        if self._slot is not None:
            return self._deliver_slot(self._slot)
        files, queue = self._files, self.queue()
        if files.is_ahead_of(now_ms):
            # The clock was set back: what comes from here on waits for its time, what is delivered isn't repeated.
            self._progress.add((files.read_time_ms, self._stored_before(files.queue_offset)))
            files.set_back(now_ms)
        due_ms = self.due_ms()
        is_due = due_ms is not None and due_ms <= now_ms
        # The queue may have lost its end to a power failure, and its begin to old age.
        files.queue_offset = max(min(files.queue_offset, queue.max_offset), queue.min_offset)
        is_behind = files.queue_offset < queue.max_offset
        if not is_behind:
            files.all_added()
        if not is_due:
            # One that was due while nobody delivered waits on the wheel: what takes it back may be behind it.
            files.pass_until(now_ms - files.window_ms if is_behind else now_ms)
        if is_behind and not (is_due and files.is_too_far_behind(now_ms)):
            return self._take_in(queue)
        if files.next_ms is not None and is_due:
            slot_ms = files.next_ms
            mark = slot_ms, self._stored_before(files.queue_offset)
            self._slot = _Slot(slot_ms, files.chain(slot_ms), self._progress.delivered_before(slot_ms), mark)
            return Step.MORE
        return Step.IDLE

    # -- onto the wheel -----------------------------------------------------------------------------------------

    def _take_in(self, queue: ConsumeQueue) -> Step:
        """The next message of the timer topic goes onto the wheel, or on at once when its slot is over."""
        offset = self._files.queue_offset
        unit = queue.unit(offset)
        if unit is None:
            self._files.queue_offset = min(queue.next_file_offset(offset), queue.max_offset)
            return Step.MORE
        physical_offset, size, _ = unit
        if size != FILLER_SIZE and not self._files.was_added(physical_offset):
            try:
                record = self._record(physical_offset, size)
                if record is not None and not self._add(record):
                    return Step.BLOCKED
            except Exception as e:
                if is_passing(e):
                    raise
                self._skip(physical_offset, e)
        self._files.queue_offset = offset + 1
        return Step.MORE

    def _add(self, record: Record) -> bool:
        """False when the store takes nothing for now."""
        fields = decode_properties(record.properties)
        topic, out_ms = fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_OUT_MS, "")
        is_time = out_ms.isascii() and out_ms.isdigit() and len(out_ms) < 19
        if not is_time or not topic or not may_be_delivered_to(topic):
            self._skip(record.physical_offset, f"REAL_TOPIC is {topic[:300]!r}, TIMER_OUT_MS {out_ms[:30]!r}")
            return True
        takes_back = names.TIMER_DEL_UNIQKEY in fields
        files = self._files
        # By the same clock each time: a broker that becomes master finds the slot that its former master had.
        wait = files.wait(int(out_ms), min(record.store_timestamp, self._now_ms))
        # A recall still applies to the rest of a slot that is half delivered.
        done_with_ms = wait.slot_ms + self._precision_ms if takes_back else wait.slot_ms
        if record.physical_offset < self._progress.delivered_before(done_with_ms):
            return True
        if wait.slot_ms < files.read_time_ms:
            if takes_back and not wait.is_rolled:
                log.info("%s comes too late to take it back", fields[names.TIMER_DEL_UNIQKEY])
                return True
            done = self._put(record, fields, NEVER_ENQUEUED, rolled=wait.is_rolled)
        else:
            try:
                files.add(wait, self._now_ms, record.physical_offset, record.size, topic, takes_back=takes_back)
                self._metrics.add(topic, -1 if takes_back else 1, self._now_ms)
                done = True
            except StoreError as e:
                done = self._blocked(e)
        if done:
            self._is_blocked = False
            self.taken_in += 1
        return done

    # -- due ----------------------------------------------------------------------------------------------------

    def _deliver_slot(self, slot: _Slot) -> Step:
        """Goes on with the first slot. Its files change at the end only: after a crash it begins anew, without what the
        journal has.
        """
        if not slot.is_gathered:
            self._gather(slot)
        elif slot.places:
            if not self._deliver(slot, slot.places[-1]):
                return Step.BLOCKED
            slot.places.pop()
        elif slot.taken_back:
            for _ in range(min(_ENTRIES, len(slot.taken_back))):
                (topic, _), was_met = slot.taken_back.popitem()
                if not was_met:
                    # It took nothing back, but was counted so.
                    self._metrics.add(topic, 1, self._now_ms)
        else:
            self._files.pass_slot()
            self._slot = None
        return Step.MORE

    def _gather(self, slot: _Slot) -> None:
        """Looks at some more entries: what takes others back has to be known first."""
        count = size = 0
        try:
            while count < _ENTRIES and size < _GATHERED_BYTES:
                found = next(slot.chain, None)
                if found is None:
                    slot.is_gathered = True
                    return
                place, entry = found
                count += 1
                if entry.is_delete:
                    key = self._taken_back(entry)
                    if key is not None:
                        slot.taken_back[key] = False
                    size += entry.size
                elif entry.physical_offset >= slot.delivered_before:
                    slot.places.append(place)
        except (StoreError, OSError):
            # Nothing is delivered yet: it begins anew.
            self._slot = None
            raise

    def _taken_back(self, entry: TimerEntry) -> _DeleteKey | None:
        """What a message takes back; None for one that can't be read."""
        record = self._record(entry.physical_offset, entry.size)
        if record is None:
            return None
        fields = decode_properties(record.properties)
        return _delete_key(fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_DEL_UNIQKEY, ""))

    def _deliver(self, slot: _Slot, place: int) -> bool:
        """Deals with one message of the slot; False when the store takes nothing for now."""
        entry = self._files.entry(place)
        if entry is None:
            self.skipped += 1
            return True
        try:
            record = self._record(entry.physical_offset, entry.size)
            if record is None:
                self._metrics.add_by_hash(entry.topic_hash, -1, self._now_ms)
                return True
            fields = decode_properties(record.properties)
            topic = fields.get(names.REAL_TOPIC, "")
            if slot.taken_back:
                keys = {_delete_key(topic, key) for key in delete_keys(fields)} & slot.taken_back.keys()
                if keys:
                    slot.taken_back.update(dict.fromkeys(keys, True))
                    return True
            if not self._put(record, fields, entry.write_time_ms, slot, rolled=bool(entry.magic & MAGIC_ROLL)):
                return False
            self._is_blocked = False
            self._metrics.add(topic, 1 if names.TIMER_DEL_UNIQKEY in fields else -1, self._now_ms)
        except Exception as e:
            if is_passing(e):
                raise
            self._skip(entry.physical_offset, e)
        return True

    def _put(
        self,
        record: Record,
        fields: dict[str, str],
        enqueue_ms: int,
        slot: _Slot | None = None,
        *,
        rolled: bool = False,
    ) -> bool:
        """Stores a message again, in its real queue, or rolled in the timer's; False: not now. A bad one is skipped.

        Without a slot it comes from the queue, after its slot was passed. One whose topic was deleted since is dropped.
        """
        if self._appender.is_of_deleted(fields.get(names.REAL_TOPIC, ""), record.physical_offset):
            return True
        try:
            queue = self.queue() if rolled else real_queue(self._store, fields)
        except IllegalMessage as e:
            self._skip(record.physical_offset, e)
            return True
        properties = encode_fitting(
            delivered_properties(fields, enqueue_ms, self._now_ms, rolled=rolled),
            self._appender.max_properties_length,
            _ABOUT_WAITING if rolled else _DONE_WITH,
            record.properties,
        )
        code = tags_code(fields.get(names.TAGS, "").encode())
        try:
            self._announce(record.physical_offset, slot)
            put = self._appender.append_again(record, queue, properties, code, record.reconsume_times)
            self._progress.delivered(put)
        except StoreBusy:
            raise
        except GantryError as e:
            if is_passing(e):
                return self._blocked(e)
            self._skip(record.physical_offset, e)
            return True
        self.delivered += 1
        return True

    def _announce(self, source: int, slot: _Slot | None) -> None:
        """Says in the journal that a message is delivered next. Raises as `Appender.append` does."""
        if slot is None:
            self._progress.announce(source, self._files.read_time_ms, [], lambda: [source])
        else:
            time_ms = slot.time_ms + self._precision_ms
            self._progress.announce(source, time_ms, [slot.mark], lambda: self._next_sources(slot))

    def _next_sources(self, slot: _Slot) -> list[int]:
        """The physical offsets of the slot's next messages."""
        entries = map(self._files.entry, slot.places[-1 : -MAX_SOURCES - 1 : -1])
        return [entry.physical_offset for entry in entries if entry is not None]

    # -- what isn't there, or can't be now ------------------------------------------------------------------------

    def _record(self, physical_offset: int, size: int) -> Record | None:
        """The timer message at a place in the commit log; None where there is none any more. Raises StoreError."""
        if not self._store.min_physical_offset <= physical_offset < self._store.max_physical_offset:
            self._skip(physical_offset, "the commit log has it no more")
            return None
        try:
            record = self._store.read_record(physical_offset)
        except RecordError as e:
            self._skip(physical_offset, e)
            return None
        if record.size != size or record.topic != TIMER_TOPIC.encode():
            self._skip(physical_offset, f"there stands no timer message of {size} bytes")
            return None
        return record

    def _skip(self, physical_offset: int, why: object) -> None:
        self.skipped += 1
        log.error("the timer message at %d in the commit log is skipped: %s", physical_offset, why)

    def _blocked(self, error: GantryError) -> bool:
        if not self._is_blocked:
            log.error("timer messages wait until the store takes them: %s", error)
        self._is_blocked = True
        return False
