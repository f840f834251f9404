"""TimerDelivery: moves timer messages from the timer topic onto the wheel, and to their real topic when they are due.

This is a state machine without a clock of its own: the caller passes the time. Each step is short, even if many
messages are due at the same time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from sys import intern

from gantrymq.broker.append import Appender, is_passing
from gantrymq.broker.delay.delivery_journal import MAX_SOURCES
from gantrymq.broker.delay.real_queue import real_queue
from gantrymq.broker.delay.timer_message import NEVER_ENQUEUED, delete_keys, delivered_properties
from gantrymq.broker.delay.timer_metrics import TimerMetrics
from gantrymq.broker.delay.timer_progress import Mark, TimerProgress
from gantrymq.errors import GantryError, IllegalMessage, RecordError, StoreBusy, StoreError
from gantrymq.logs import peer_log
from gantrymq.metrics import Histogram
from gantrymq.protocol import properties as names
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import decode_properties, encode_fitting
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import TIMER_TOPIC, may_be_delivered_to
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.store.timer_log import MAGIC_ROLL, TimerEntry
from gantrymq.store.timer_store import TimerStore

log = peer_log(__name__)

#: Maximum number of entries of the timer log that are read in one step.
_ENTRIES = 200
#: Maximum size of the recall messages that are read in one step, in bytes.
_GATHERED_BYTES = 1024 * 1024
#: Maximum length of a delete key that is stored unchanged, in bytes: the length of a message's unique key.
_LONGEST_KEY = 32

#: Upper bounds of the delays of timer messages, in seconds (`DefaultStoreMetricsManager`).
_DELAY_BOUNDS_S = (60, 600, 3600, 43_200, 86_400, 259_200)

#: Properties that are omitted, one by one in this order, if all properties together exceed their limit.
_ABOUT_WAITING = (names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS, names.TIMER_ROLL_TIMES)
_DONE_WITH = (*_ABOUT_WAITING, names.TIMER_OUT_MS, names.REAL_QUEUE_ID, names.REAL_TOPIC)


class Step(Enum):
    """The result of a step."""

    #: There is more to do.
    MORE = "MORE"
    #: The store can't be written for now. The caller retries the step.
    BLOCKED = "BLOCKED"
    #: A file of the store is being preallocated. The caller retries the step soon.
    NOT_PREALLOCATED = "NOT_PREALLOCATED"
    #: There is nothing to do before the next slot is due or the next message arrives.
    IDLE = "IDLE"


#: (topic, delete key). Java ignores the topic, so that a client with the permission for one topic can recall messages
#: of other topics.
_DeleteKey = tuple[str, bytes]


def _delete_key(topic: str, key: str) -> _DeleteKey:
    """Returns the delete key for a message. Replaces long keys by digests: all keys of a slot are in memory."""
    encoded = key.encode()
    return intern(topic), encoded if len(encoded) <= _LONGEST_KEY else blake2b(encoded, digest_size=16).digest()


@dataclass(slots=True)
class _Slot:
    """The slot that is being delivered, and its progress. It may have a million messages."""

    time_ms: int
    #: (position in the timer log, entry) of the entries that are not read yet.
    chain: Iterator[tuple[int, TimerEntry]]
    #: Physical offset before which all messages of the slot were delivered earlier.
    delivered_before: int
    #: The progress before the delivery of the slot's first message.
    mark: Mark
    #: Whether all entries are read.
    is_gathered: bool = False
    #: Positions of the entries whose messages are not delivered yet. The last item is delivered next.
    places: array[int] = field(default_factory=lambda: array("q"))
    #: Delete key of each recall -> whether its message was found in the slot.
    taken_back: dict[_DeleteKey, bool] = field(default_factory=dict)


class TimerDelivery:
    """Moves the timer messages of one broker.

    Attributes:
        enqueued: Number of messages added to the wheel since the start, by topic, without those of deleted topics.
        dequeued: Number of messages delivered since the start, by topic, without those of deleted topics.
        delays_s: For the messages of `enqueued`, time from their birth to their delivery time, in seconds, by topic.
        total_enqueued: Number of all messages added to the wheel since the start.
        total_dequeued: Number of all messages delivered since the start.
        skipped: Number of messages skipped since the start, because they can't be read or delivered.
    """

    def __init__(self, files: TimerStore, appender: Appender, metrics: TimerMetrics, precision_ms: int) -> None:
        self.enqueued: Counter[str] = Counter()
        self.dequeued: Counter[str] = Counter()
        self.delays_s: dict[str, Histogram] = {}
        self.total_enqueued = self.total_dequeued = 0
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
        """Whether a slot is partly delivered."""
        return self._slot is not None

    def begin(self) -> None:
        """Reads the progress from the checkpoint and the journal. Raises StoreError.

        Call it before the first step, and after the files are replaced.
        """
        self._slot = None
        self._is_blocked = False
        files = self._files
        self._progress.begin((files.delivered_time_ms, self._stored_before(files.delivered_queue_offset)))

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Removes the counters of deleted topics. The totals stay."""
        for topic in topics:
            self.enqueued.pop(topic, None)
            self.dequeued.pop(topic, None)
            self.delays_s.pop(topic, None)

    def is_journaled(self) -> bool:
        """Returns whether the log has a delivery journal of the timer. Raises StoreError."""
        return self._progress.is_journaled()

    def _stored_before(self, queue_offset: int) -> int:
        """Returns a physical offset that separates the timer messages before `queue_offset` from all others."""
        queue = self.queue()
        if queue_offset >= queue.max_offset:
            # If the queue has lost its end, new messages reuse these queue offsets. Their physical offset is larger.
            return self._store.max_physical_offset
        unit = queue.unit(queue_offset)
        return 0 if unit is None or unit[1] == FILLER_SIZE else unit[0]

    def queue(self) -> ConsumeQueue:
        """Returns the queue of the timer topic."""
        return self._store.queue(TIMER_TOPIC, 0)

    def count_waiting(self, now_ms: int) -> None:
        """Adds the messages on the wheel to the metrics. Takes 1 s for half a million messages."""
        topics: dict[int, str] = {}
        for entry in self._files.entries():
            if entry.topic_hash not in topics:
                record = self._record(entry.physical_offset, entry.size)
                if record is None:
                    continue
                topics[entry.topic_hash] = decode_properties(record.properties).get(names.REAL_TOPIC, "")
            self._metrics.add(topics[entry.topic_hash], entry.messages, now_ms)

    def due_ms(self) -> int | None:
        """Returns the time at which the next slot is due, in ms. None if the wheel is empty."""
        next_ms = self._files.next_ms
        return None if next_ms is None else next_ms + self._precision_ms

    def step(self, now_ms: int) -> Step:
        """Runs the next step. `now_ms` is the current time.

        Raises StoreBusy while a file of the store is being preallocated, and StoreError or OSError if files can't be
        read. The next step then retries the same work.
        """
        self._now_ms = now_ms
        if self._slot is not None:
            return self._deliver_slot(self._slot)
        files, queue = self._files, self.queue()
        if files.is_ahead_of(now_ms):
            # The clock was set back. New messages wait for their time. Delivered messages are not repeated.
            self._progress.add((files.read_time_ms, self._stored_before(files.queue_offset)))
            files.set_back(now_ms)
        due_ms = self.due_ms()
        is_due = due_ms is not None and due_ms <= now_ms
        # The queue may have lost its end in a power failure, and its start may have expired.
        files.read_to(max(min(files.queue_offset, queue.max_offset), queue.min_offset))
        is_behind = files.queue_offset < queue.max_offset
        if not is_behind:
            files.all_added()
        if not is_due:
            # Messages that became due before the start must wait on the wheel: their recall may follow in the queue.
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
        """Adds the next message of the timer topic to the wheel. If its slot has passed, delivers it at once."""
        offset = self._files.queue_offset
        unit = queue.unit(offset)
        if unit is None:
            self._files.read_to(min(queue.next_file_offset(offset), queue.max_offset))
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
        self._files.read_to(offset + 1)
        return Step.MORE

    def _add(self, record: Record) -> bool:
        """Adds a message to the wheel or delivers it. Returns False if the store can't be written for now."""
        fields = decode_properties(record.properties)
        topic, out_ms = fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_OUT_MS, "")
        is_time = out_ms.isascii() and out_ms.isdigit() and len(out_ms) < 19
        if not is_time or not topic or not may_be_delivered_to(topic):
            self._skip(record.physical_offset, f"REAL_TOPIC is {topic[:300]!r}, TIMER_OUT_MS {out_ms[:30]!r}")
            return True
        takes_back = names.TIMER_DEL_UNIQKEY in fields
        files = self._files
        # Computed from the store time, so that a new master computes the same slot as the former master.
        wait = files.wait(int(out_ms), min(record.store_timestamp, self._now_ms))
        # A recall message still applies to the rest of a partly delivered slot.
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
            self._count_enqueued(topic, int(out_ms) - record.born_timestamp)
        return done

    def _count_enqueued(self, topic: str, delay_ms: int) -> None:
        self.enqueued[topic] += 1
        self.total_enqueued += 1
        delays = self.delays_s.get(topic)
        if delays is None:
            delays = self.delays_s[topic] = Histogram(_DELAY_BOUNDS_S)
        # Whole seconds, as in Java.
        delays.observe(max(delay_ms, 0) // 1000)

    # -- due ----------------------------------------------------------------------------------------------------

    def _deliver_slot(self, slot: _Slot) -> Step:
        """Runs a step of the first slot.

        The files change only at the end of the slot. After a crash, the slot is read again, and the messages that the
        journal records as delivered are skipped.
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
                    # The recall has found no message. The recall counted as -1 when it was added to the wheel.
                    self._metrics.add(topic, 1, self._now_ms)
        else:
            self._files.pass_slot()
            self._slot = None
        return Step.MORE

    def _gather(self, slot: _Slot) -> None:
        """Reads further entries of the slot. All recalls must be read before a message is delivered."""
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
            # Nothing is delivered yet, so the next step can start the slot again.
            self._slot = None
            raise

    def _taken_back(self, entry: TimerEntry) -> _DeleteKey | None:
        """Returns the delete key of a recall message. None if it can't be read."""
        record = self._record(entry.physical_offset, entry.size)
        if record is None:
            return None
        fields = decode_properties(record.properties)
        return _delete_key(fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_DEL_UNIQKEY, ""))

    def _deliver(self, slot: _Slot, place: int) -> bool:
        """Delivers, recalls or skips one message of the slot. Returns False if the store can't be written for now."""
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
        """Stores a message in its real queue, or again in the timer topic if it is rolled.

        An invalid message is skipped. A message is dropped if its topic was deleted after it was stored.

        Args:
            record: The message.
            fields: Its properties.
            enqueue_ms: Time at which it was added to the wheel, in ms.
            slot: The slot that is being delivered. None for a message that arrives after its slot has passed.
            rolled: Whether the message waits again, because it is due after the roll window.

        Returns:
            False if the store can't be written for now.
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
        self.dequeued[fields.get(names.REAL_TOPIC, "")] += 1
        self.total_dequeued += 1
        return True

    def _announce(self, source: int, slot: _Slot | None) -> None:
        """Makes sure that the journal contains the next message. Raises as `Appender.append` does."""
        if slot is None:
            self._progress.announce(source, self._files.read_time_ms, [], lambda: [source])
        else:
            time_ms = slot.time_ms + self._precision_ms
            self._progress.announce(source, time_ms, [slot.mark], lambda: self._next_sources(slot))

    def _next_sources(self, slot: _Slot) -> list[int]:
        entries = map(self._files.entry, slot.places[-1 : -MAX_SOURCES - 1 : -1])
        return [entry.physical_offset for entry in entries if entry is not None]

    # -- damaged messages and a store that can't be written ---------------------------------------------------------

    def _record(self, physical_offset: int, size: int) -> Record | None:
        """Returns the timer message at this offset, or None and counts it as skipped. Raises StoreError."""
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
        """Logs the first error of a store that can't be written. Returns False, which the caller returns as well."""
        if not self._is_blocked:
            log.error("timer messages wait until the store takes them: %s", error)
        self._is_blocked = True
        return False
