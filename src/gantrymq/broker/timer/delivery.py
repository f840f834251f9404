"""Timer messages, step by step: from their queue onto the wheel, and from there to their real topic when due.

A plain state machine that is told the time. Each step is short, however many messages are due at once.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from enum import Enum

from gantrymq.broker.appender import Appender
from gantrymq.broker.timer.message import NEVER_ENQUEUED, delete_keys, delivered_properties
from gantrymq.broker.timer.metrics import TimerMetrics
from gantrymq.errors import GantryError, IllegalMessage, RecordError, RequestRefused, StoreError
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import TIMER_TOPIC
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.store.timer_log import MAGIC_ROLL, TimerEntry
from gantrymq.store.timer_store import TimerStore

log = logging.getLogger(__name__)

#: So many entries of the timer log are read in one step.
_ENTRIES = 200


class Step(Enum):
    """What a step came to."""

    #: There is more to do.
    MORE = "MORE"
    #: The store takes nothing for now; the same is to be tried again.
    BLOCKED = "BLOCKED"
    #: Nothing to do before the next slot's time, or the next message.
    IDLE = "IDLE"


class TimerDelivery:
    """Moves the messages of one broker. `taken_in` and `delivered` count them since its start."""

    def __init__(self, files: TimerStore, appender: Appender, metrics: TimerMetrics, precision_ms: int) -> None:
        self.taken_in = 0
        self.delivered = 0
        self._files = files
        self._appender = appender
        self._store = appender.store
        self._metrics = metrics
        self._precision_ms = precision_ms
        self._now_ms = 0
        self._is_blocked = False
        #: The rest of the slot that is being delivered.
        self._slot: Iterator[Step] | None = None

    @property
    def is_delivering(self) -> bool:
        """In the midst of a slot; a crash now would deliver it once more."""
        return self._slot is not None

    def queue(self) -> ConsumeQueue:
        """Where timer messages go first."""
        return self._store.queue(TIMER_TOPIC, 0)

    def due_ms(self) -> int | None:
        """When there is something to do without a new message; None: never."""
        next_ms = self._files.next_ms
        return None if next_ms is None else next_ms + self._precision_ms

    def step(self, now_ms: int) -> Step:
        """Does the next little piece of work."""
        self._now_ms = now_ms
        if self._slot is not None:
            step = next(self._slot, None)
            if step is not None:
                return step
            self._slot = None
        files, queue = self._files, self.queue()
        due_ms = self.due_ms()
        is_due = due_ms is not None and due_ms <= now_ms
        if not is_due:
            files.pass_until(now_ms)
        # The queue may have lost its end to a power failure, and its begin to old age.
        files.queue_offset = max(min(files.queue_offset, queue.max_offset), queue.min_offset)
        if files.queue_offset < queue.max_offset and not (is_due and files.is_too_far_behind(now_ms)):
            return self._take_in(queue)
        if is_due:
            self._slot = self._deliver_slot()
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
            record = self._record(physical_offset, size)
            if record is not None and not self._add(record):
                return Step.BLOCKED
        self._files.queue_offset = offset + 1
        return Step.MORE

    def _add(self, record: Record) -> bool:
        """False when the store takes nothing for now."""
        fields = decode_properties(record.properties)
        topic, out_ms = fields.get(names.REAL_TOPIC), fields.get(names.TIMER_OUT_MS, "")
        if topic is None or not (out_ms.isascii() and out_ms.isdigit() and len(out_ms) < 19):
            log.error("the timer message at %d has no REAL_TOPIC or TIMER_OUT_MS: skipped", record.physical_offset)
            return True
        takes_back = names.TIMER_DEL_UNIQKEY in fields
        if int(out_ms) < self._files.read_time_ms:
            if takes_back:
                log.info("%s comes too late to take it back", fields[names.TIMER_DEL_UNIQKEY])
                return True
            done = self._put(record, fields, NEVER_ENQUEUED)
        else:
            try:
                self._files.add(
                    int(out_ms), self._now_ms, record.physical_offset, record.size, topic, takes_back=takes_back
                )
                self._metrics.add(topic, -1 if takes_back else 1, self._now_ms)
                done = True
            except StoreError as e:
                done = self._blocked(e)
        if done:
            self._is_blocked = False
            self.taken_in += 1
        return done

    # -- due ----------------------------------------------------------------------------------------------------

    def _deliver_slot(self) -> Iterator[Step]:
        """Delivers the first slot. Its files change at the end only: after a crash the whole slot comes again."""
        files = self._files
        slot_ms = files.next_ms
        assert slot_ms is not None, "a slot is due"
        #: Where the entries of messages are; a slot may have a million.
        places = array("q")
        #: (topic, delete key), and those whose message was there. Java looks at no topic, so that who may send to one
        #: takes back messages of another.
        taken_back: set[tuple[str, str]] = set()
        met: set[tuple[str, str]] = set()
        for number, (place, entry) in enumerate(files.chain(slot_ms), 1):
            if entry.is_delete:
                taken_back |= self._taken_back(entry)
            else:
                places.append(place)
            if number % _ENTRIES == 0:
                yield Step.MORE
        while places:
            due = files.entry(places.pop())
            if due is not None and (record := self._record(due.physical_offset, due.size)) is not None:
                fields = decode_properties(record.properties)
                topic = fields.get(names.REAL_TOPIC, "")
                if keys := {(topic, key) for key in delete_keys(fields)} & taken_back:
                    met |= keys
                else:
                    rolled = bool(due.magic & MAGIC_ROLL)
                    while not self._put(record, fields, due.write_time_ms, rolled=rolled):
                        yield Step.BLOCKED
                    self._is_blocked = False
                    takes_back = names.TIMER_DEL_UNIQKEY in fields
                    self._metrics.add(topic, 1 if takes_back else -1, self._now_ms)
            yield Step.MORE
        for topic, _ in taken_back - met:
            # It took nothing back, but was counted so.
            self._metrics.add(topic, 1, self._now_ms)
        files.pass_slot()

    def _taken_back(self, entry: TimerEntry) -> set[tuple[str, str]]:
        """(topic, delete key) of a message that takes another one back."""
        record = self._record(entry.physical_offset, entry.size)
        if record is None:
            return set()
        fields = decode_properties(record.properties)
        return {(fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_DEL_UNIQKEY, ""))}

    def _put(self, record: Record, fields: dict[str, str], enqueue_ms: int, *, rolled: bool = False) -> bool:
        """Stores a message again, in its real queue, or rolled in the timer's; False: not now. A bad one is dropped."""
        try:
            if rolled:
                queue = self.queue()
            else:
                queue_id = fields.get(names.REAL_QUEUE_ID, "")
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise IllegalMessage("it has no REAL_QID")
                queue = self._store.queue(fields.get(names.REAL_TOPIC, ""), int(queue_id))
            properties = encode_properties(delivered_properties(fields, enqueue_ms, self._now_ms, rolled=rolled))
        except (GantryError, ValueError) as e:
            return self._dropped(record, e)
        code = tags_code(fields.get(names.TAGS, "").encode())
        try:
            self._appender.append_again(record, queue, properties, code, record.reconsume_times)
        except RequestRefused as e:
            return self._dropped(record, e) if e.code == ResponseCode.MESSAGE_ILLEGAL else self._blocked(e)
        except StoreError as e:
            return self._blocked(e)
        self.delivered += 1
        return True

    def _record(self, physical_offset: int, size: int) -> Record | None:
        """The timer message at a place in the commit log; None where there is none any more. Raises StoreError."""
        if not self._store.min_physical_offset <= physical_offset < self._store.max_physical_offset:
            log.error("the timer message at %d is lost: the commit log has it no more", physical_offset)
            return None
        try:
            record = self._store.read_record(physical_offset)
        except RecordError as e:
            log.error("the timer message at %d is lost: %s", physical_offset, e)
            return None
        if record.size != size or record.topic != TIMER_TOPIC.encode():
            log.error("at %d is no timer message of %d bytes: skipped", physical_offset, size)
            return None
        return record

    def _dropped(self, record: Record, error: Exception) -> bool:
        log.error("the timer message at %d can't be delivered: %s", record.physical_offset, error)
        return True

    def _blocked(self, error: GantryError) -> bool:
        if not self._is_blocked:
            log.error("timer messages wait until the store takes them: %s", error)
        self._is_blocked = True
        return False
