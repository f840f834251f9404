"""Decisions: a decision commits or rolls back all half messages of some ranges.

A decision is one record in the op queue, with its own tag. It is written before any of its half messages changes. If
the broker is killed, its next start finds the record and continues. After a start, the broker reads the op queue from
the first entry that is still needed, so it finds every open decision.

Java's broker logs the record and skips it. It then checks the remaining half messages one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from gantrymq.broker.append import Appender
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
    """A decision about ranges of half messages, and its progress."""

    def __init__(self, group: str, topics: str, verdict: int, ranges: HalfRanges) -> None:
        self.group = group
        self.topics = topics
        #: TRANSACTION_COMMIT or TRANSACTION_ROLLBACK.
        self.verdict = verdict
        self.ranges = ranges
        #: The id depends on the ranges only: a commit and a rollback of the same ranges have the same id.
        self.id = sha256(ranges.body).hexdigest()[:32]
        #: Offset in the op queue, and physical offset in the commit log. -1 before `write`.
        self.op_offset = -1
        self.physical_offset = -1
        #: Progress: index of the current range, and number of its half messages that have ended.
        self.index = 0
        self.done = 0
        #: Number of half messages that have not ended yet.
        self.left = 0

    def write(self, appender: Appender) -> None:
        """Appends the decision to the op queue. Raises the same errors as `Appender.append`."""
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
        """Returns the decision of a record for which `is_decision` is true. Logs an invalid one and returns None."""
        fields = decode_properties(record.properties)
        try:
            found = cls(fields[names.PRODUCER_GROUP], fields[_TOPICS], int(fields[_VERDICT]), HalfRanges(record.body))
        except (KeyError, ValueError, BodyError) as e:
            log.error("the decision at %d in the commit log is ignored: %s", record.physical_offset, e)
            return None
        found.op_offset, found.physical_offset = record.queue_offset, record.physical_offset
        return found


def name_of_verdict(verdict: int) -> str:
    """Returns "committed" or "rolled back", for messages."""
    return "committed" if verdict == TRANSACTION_COMMIT else "rolled back"


def is_decision(record: Record) -> bool:
    """Returns True if a record of the op queue is a decision."""
    return names.find_property(record.properties, b"TAGS") == _TAG.encode()


def check_fits(decision: Decision) -> None:
    """Raises IllegalMessage if the group and the topics do not fit into the properties of a record."""
    if len(decision.group) + len(decision.topics) > names.MAX_PROPERTIES_LENGTH // 4:
        raise IllegalMessage("the names of the producer group and the topics are too long")


class Decisions:
    """The open decisions, which are not completely carried out."""

    def __init__(self) -> None:
        #: Offset in the op queue -> decision.
        self.open: dict[int, Decision] = {}

    def has(self, half_offset: int) -> bool:
        """Returns True if an open decision contains the half message."""
        return self.about(half_offset) is not None

    def about(self, half_offset: int) -> Decision | None:
        """Returns the open decision that contains the half message, or None."""
        return next((decision for decision in self.open.values() if decision.ranges.has(half_offset)), None)


def written_decisions(store: MessageStore, decision: Decision) -> Iterator[Record | None]:
    """Yields the records of all decisions with the same id, and None after each step of the search.

    The search includes records that are appended while it runs. No None follows the last step.
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
    """Searches the op messages before a decision for half messages of its ranges.

    Yields (op queue offset, half offsets). The list is empty after each step, and for an op message that lists none.
    """
    queue, ranges = op_queue(store), decision.ranges
    offset = queue.count_before(ranges[0].physical_offset)
    while units := queue.units(offset, min(256, decision.op_offset - offset)):
        for physical_offset, _, code in UNIT.iter_unpack(units):
            record = _read(store, physical_offset) if code == REMOVE_CODE else None
            listed = half_offsets(record) if record is not None else []
            if listed:
                # This cheap test comes first, because most op messages list half messages outside the ranges.
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
