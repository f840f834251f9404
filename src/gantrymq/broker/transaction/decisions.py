"""Decisions: that all half messages of some ranges are to be committed, or rolled back.

A decision is one record, written before anything else is done about it. So what is decided is completed, wherever the
broker is killed: a broker that starts finds the record, and goes on. It stands among the op messages, under a tag of
its own, where it stays in sight until it is carried out: op messages are read from the first one on that isn't dealt
with. Java's broker passes it with a line in its log, and has the half messages that are left as any others.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from gantrymq.broker.appender import Appender
from gantrymq.broker.transaction.op_messages import REMOVE_CODE, half_offsets, op_queue
from gantrymq.errors import BodyError, GantryError, IllegalMessage
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.half_ranges import HalfRanges
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

_TAG = "ranges"
DECISION_CODE = tags_code(_TAG.encode())
_TOPICS = "GANTRY_TOPICS"
_VERDICT = "GANTRY_VERDICT"
_ID = "GANTRY_DECISION"


class Decision:
    """What is decided, and how far it is carried out."""

    def __init__(self, group: str, topics: str, verdict: int, ranges: HalfRanges) -> None:
        self.group = group
        self.topics = topics
        #: TRANSACTION_COMMIT or TRANSACTION_ROLLBACK.
        self.verdict = verdict
        self.ranges = ranges
        #: The same ranges have the same id, whatever is decided about them.
        self.id = sha256(ranges.body).hexdigest()[:32]
        #: Where it stands in the op queue, and in the log.
        self.op_offset = -1
        self.physical_offset = -1
        #: What is done: the ranges before this one, and so many of its half messages.
        self.index = 0
        self.done = 0
        #: How many half messages are left.
        self.left = 0

    def write(self, appender: Appender) -> None:
        """Raises as `Appender.append` does."""
        fields = {names.TAGS: _TAG, names.PRODUCER_GROUP: self.group, _ID: self.id}
        fields |= {_VERDICT: str(self.verdict), _TOPICS: self.topics}
        result = appender.append(
            op_queue(appender.store),
            0,
            0,
            now_ms(),
            appender.store_host,
            0,
            self.ranges.body,
            encode_properties(fields),
            DECISION_CODE,
        )
        self.op_offset, self.physical_offset = result.queue_offset, result.physical_offset

    @classmethod
    def read(cls, record: Record) -> Decision | None:
        """The decision of a record that `is_decision`; None for one that can't be read, which is logged."""
        fields = decode_properties(record.properties)
        try:
            found = cls(fields[names.PRODUCER_GROUP], fields[_TOPICS], int(fields[_VERDICT]), HalfRanges(record.body))
        except (KeyError, ValueError, BodyError) as e:
            log.error("the decision at %d in the commit log is ignored: %s", record.physical_offset, e)
            return None
        found.op_offset, found.physical_offset = record.queue_offset, record.physical_offset
        return found


def name_of_verdict(verdict: int) -> str:
    """What becomes of the half messages."""
    return "committed" if verdict == TRANSACTION_COMMIT else "rolled back"


def is_decision(record: Record) -> bool:
    """Whether a record of the op queue is one."""
    return names.find_property(record.properties, b"TAGS") == _TAG.encode()


def check_fits(decision: Decision) -> None:
    """Raises IllegalMessage for a group and topics that don't fit a record's properties."""
    if len(decision.group) + len(decision.topics) > names.MAX_PROPERTIES_LENGTH // 4:
        raise IllegalMessage("the names of the producer group and the topics are too long")


class Decisions:
    """The decisions that aren't carried out yet."""

    def __init__(self) -> None:
        #: By the offset in the op queue.
        self.open: dict[int, Decision] = {}

    def has(self, half_offset: int) -> bool:
        """Whether it is decided what becomes of a half message, and will be done."""
        return self.about(half_offset) is not None

    def about(self, half_offset: int) -> Decision | None:
        """What is decided about a half message, and will be done."""
        return next((decision for decision in self.open.values() if decision.ranges.has(half_offset)), None)


def written_decisions(store: MessageStore, decision: Decision) -> Iterator[Record | None]:
    """The records of decisions about the same ranges; None after each part of the search.

    It ends at the queue's end as it is then: without a None after the last part.
    """
    queue = op_queue(store)
    offset = queue.count_before(decision.ranges[0].physical_offset)
    while units := queue.units(offset, 4096):
        for physical_offset, _, code in UNIT.iter_unpack(units):
            record = _read(store, physical_offset) if code == DECISION_CODE else None
            if record is not None and names.find_property(record.properties, _ID.encode()) == decision.id.encode():
                yield record
        offset += len(units) // UNIT.size
        if offset < queue.max_offset:
            yield None


def ended_before(store: MessageStore, decision: Decision) -> Iterator[tuple[int, list[int]]]:
    """(queue offset, half offsets) of each op message before a decision that lists half messages of its ranges.

    With no half offsets after each part of the search.
    """
    queue, ranges = op_queue(store), decision.ranges
    offset = queue.count_before(ranges[0].physical_offset)
    while units := queue.units(offset, min(256, decision.op_offset - offset)):
        for physical_offset, _, code in UNIT.iter_unpack(units):
            record = _read(store, physical_offset) if code == REMOVE_CODE else None
            listed = half_offsets(record) if record is not None else []
            if listed:
                # Most are of transactions beside it, whose half messages are together as its own are.
                is_near = ranges.overlap(min(listed), max(listed) + 1)
                yield offset, [each for each in listed if ranges.has(each)] if is_near else []
            offset += 1
        yield offset, []


def _read(store: MessageStore, physical_offset: int) -> Record | None:
    try:
        return store.read_record(physical_offset)
    except GantryError as e:
        log.error("what ended, or was decided, at %d in the commit log can't be read: %s", physical_offset, e)
        return None
