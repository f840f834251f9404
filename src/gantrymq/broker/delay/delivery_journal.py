"""DeliveryJournal: entries in the log that show which delayed messages are delivered.

Before the broker delivers due messages, it stores a journal entry with their offsets and the progress so far. The
records after the entry show how many of these messages were delivered. The newest entry is therefore enough to find the
progress after a crash, and on a slave that becomes master, even if the end of the log is lost. Java has only tables and
checkpoints, which lag behind by some seconds.

A new entry is needed only if other records were stored after the last delivery. Many messages that are due at the same
time share one entry.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Self, TypeVar
from zlib import crc32

import msgspec

from gantrymq.broker.append import Appender
from gantrymq.errors import BodyError, RecordError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import DELIVERY_JOURNAL_TOPIC, TIMER_TOPIC
from gantrymq.store.message_store import PutResult
from gantrymq.system import clock

log = peer_log(__name__)

#: Maximum number of messages in an entry. An entry of this length takes 1 KiB.
MAX_SOURCES = 64
#: The queues of the topic, each with the entries of one kind.
LEVELS_QUEUE = 0
TIMER_QUEUE = 1

_UNIQUE_KEY = names.UNIQUE_KEY.encode()
_REAL_TOPIC = names.REAL_TOPIC.encode()
_TIMER_TOPIC = TIMER_TOPIC.encode()


class JournalEntry(msgspec.Struct, rename="camel", kw_only=True):
    """The fields that all entries have. Each kind of entry adds fields for its progress."""

    #: Physical offsets of the next messages, in the order of their delivery. The broker may skip some of these
    #: messages.
    sources: list[int]


E = TypeVar("E", bound=JournalEntry)


class _Source(NamedTuple):
    """The parts of a delayed message that its delivered copy has, too. A checksum replaces the body."""

    topic: bytes | None
    identity: tuple[object, ...]

    @classmethod
    def of(cls, record: Record, topic: bytes | None) -> Self:
        """Returns this for a record and the topic of its delivery."""
        identity = (
            record.born_timestamp,
            record.born_host,
            record.flag,
            record.reconsume_times,
            find_property(record.properties, _UNIQUE_KEY),
            len(record.body),
            crc32(record.body),
        )
        return cls(topic, identity)

    def is_copy_of(self, source: _Source | None) -> bool:
        return source is not None and self.topic in (source.topic, _TIMER_TOPIC) and self.identity == source.identity


class DeliveryJournal(Generic[E]):
    """The entries of one kind, in the queue `queue_id` of the journal's topic."""

    def __init__(self, appender: Appender, queue_id: int, kind: type[E]) -> None:
        self._appender = appender
        self._queue_id = queue_id
        self._kind = kind
        #: The messages of the newest entry that are not delivered yet. They need no further entry while the log still
        #: ends at `_log_end`.
        self._sources: list[int] = []
        self._log_end = -1

    def announces(self, source: int) -> bool:
        """Returns whether the message at this physical offset can be delivered without another entry."""
        if self._appender.escapes:
            # A slave can't write to the log.
            return True
        if self._log_end != self._appender.store.max_physical_offset or source not in self._sources:
            return False
        del self._sources[: self._sources.index(source)]
        return True

    def announce(self, entry: E) -> None:
        """Stores an entry. Raises as `Appender.append` does."""
        appender = self._appender
        queue = appender.store.queue(DELIVERY_JOURNAL_TOPIC, self._queue_id)
        body = encode_json(entry)
        put = appender.append(queue, 0, 0, clock.now_ms(), appender.store_host, 0, body, b"", 0, is_again=True)
        self._sources = entry.sources.copy()
        self._log_end = put.physical_offset + put.size

    def delivered(self, put: PutResult) -> None:
        """Records that the first announced message was stored as `put`."""
        if not self._appender.escapes:
            del self._sources[:1]
            self._log_end = put.physical_offset + put.size

    def last(self) -> tuple[E, int] | None:
        """Returns the newest entry, and how many of its sources are delivered or skipped. None without an entry.

        Raises StoreError if the log can't be read.
        """
        store = self._appender.store
        queue = store.find_queue(DELIVERY_JOURNAL_TOPIC, self._queue_id)
        unit = None if queue is None else queue.unit(queue.max_offset - 1)
        if unit is None or unit[0] < store.min_physical_offset:
            return None
        try:
            record = store.read_record(unit[0])
            entry = decode_json(record.body, self._kind)
            return entry, self._count_delivered(entry, record.physical_offset + record.size)
        except (RecordError, BodyError) as e:
            log.error("the delivery journal can't be read at %d: delayed messages may be repeated: %s", unit[0], e)
            return None

    def _count_delivered(self, entry: E, start: int) -> int:
        """Counts the sources up to the last one that was delivered.

        `start` is the end of the entry, where the delivered copies begin. Raises RecordError, StoreError.
        """
        offsets = entry.sources
        # Reads each source once, and only when it is compared.
        known: dict[int, _Source | None] = {}

        def source(number: int) -> _Source | None:
            if number not in known:
                known[number] = self._source(offsets[number], start)
            return known[number]

        done = 0
        for record in self._appender.store.records_with(b"", start):
            copied = _Source.of(record, record.topic)
            found = next((i for i in range(done, len(offsets)) if copied.is_copy_of(source(i))), None)
            if found is None:
                if done == len(offsets) or source(done) is not None:
                    break
                # The record may be the copy of a source that was deleted after its delivery, with its file. This
                # source counts as delivered: it can't be delivered again.
                found = done
            done = found + 1
        return done

    def _source(self, offset: int, end: int) -> _Source | None:
        """Returns the message at a physical offset before `end`. None if it is deleted or damaged."""
        store = self._appender.store
        if not store.min_physical_offset <= offset < end:
            return None
        try:
            record = store.read_record(offset)
        except RecordError:
            # The broker skips damaged messages.
            return None
        return _Source.of(record, find_property(record.properties, _REAL_TOPIC))
