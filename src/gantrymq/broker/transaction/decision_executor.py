"""Carries out the decisions about half messages (`decisions`) in the background, in short time slices.

For a commit, the messages are stored in their target queues, in the order of the half queue. Op messages then list the
half messages, as if a separate request had ended each of them.

If the broker is killed, it continues after the last message that it has committed: each committed message contains the
physical offset of its half message. Each message is stored once. Half messages that ended earlier are skipped.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append import PREALLOCATION_RETRY_S, Appender, is_passing
from gantrymq.broker.tables import TransactionCounts
from gantrymq.broker.transaction.check import TransactionCheck
from gantrymq.broker.transaction.decisions import Decision, ended_before
from gantrymq.broker.transaction.ended_half_messages import EndedHalfMessages
from gantrymq.broker.transaction.half_batches import batch_properties
from gantrymq.broker.transaction.half_messages import (
    destination,
    first_half_offset,
    half_of,
    half_queue,
    target_topic,
)
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.errors import GantryError, RecordError, RequestRefused, StoreBusy
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.committed_copy import CommittedCopies
from gantrymq.protocol.half_ranges import GANTRY_HALF
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import HOST_SIZE_V4, Record, unpacker
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC
from gantrymq.store.consume_queue import UNIT
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Longest time slice in one event-loop iteration, in seconds.
SLICE_S = 0.005
#: Largest number of half messages in one step, which takes about 0.6 ms.
_STEP = 256
#: Largest size of the half messages in one step, in bytes.
_STEP_BYTES = 512 * 1024
#: Maximum number of log records that one step scans after a start.
_SCAN_STEP = 100

_HALF_TOPIC = TRANSACTION_HALF_TOPIC.encode()
_born_timestamp = unpacker("born_timestamp")


class _Tail(NamedTuple):
    """The target queue of a batch of half messages, and the encoder of their committed records.

    The properties of all half messages of a batch end with the same bytes, the *tail*, which contains the target queue.
    """

    topic: str
    queue_id: int
    copies: CommittedCopies


class DecisionProgress:
    """A decision that is being carried out."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.topics = frozenset(decision.topics.split(","))
        self.done = asyncio.Event()
        #: Search for half messages that ended before the decision. None after the end of the search.
        self.earlier: Iterator[tuple[int, list[int]]] | None = None
        #: The half messages that the search has found.
        self.ended = EndedHalfMessages()
        #: Log records after the decision, to find the progress before the broker was restarted. None after the scan.
        self.scan: Iterator[Record] | None = None
        self.scan_end = 0
        #: Physical offset of the last half message that was committed before the restart; -1 for none.
        self.committed_up_to = -1
        self.tail: _Tail | None = None


class DecisionExecutor:
    """Carries out the open decisions. `commit_one` stores one half message in its target queue."""

    def __init__(
        self,
        appender: Appender,
        *,
        check: TransactionCheck,
        ops: OpMessages,
        commit_one: Callable[[Record], None],
        ops_added: Callable[[bool], None],
        counts: TransactionCounts,
        jobs: Jobs,
    ) -> None:
        """Creates the background job. `start` starts it.

        `ops_added` is called with True if an op message should be written at once.
        """
        self._appender = appender
        self._store = appender.store
        self._check = check
        self._ops = ops
        self._commit_one = commit_one
        self._ops_added = ops_added
        self._counts = counts
        #: Offset of the decision in the op queue -> its progress. The first decision in the dictionary is continued
        #: next.
        self.open: OrderedDict[int, DecisionProgress] = OrderedDict()
        self._job = jobs.repeating("end the half messages that are decided about", self._go_on)

    def start(self) -> None:
        self._job.start(0.0 if self.open else None)

    def cancel(self) -> None:
        """Stops the background job. The next `start` continues it."""
        self._job.cancel()

    def clear(self) -> None:
        """Drops all decisions, because another broker carries out the decisions."""
        self.open.clear()

    def begin(self, decision: Decision) -> DecisionProgress:
        """Starts to carry out a decision that has just been written."""
        progress = self.open[decision.op_offset] = DecisionProgress(decision)
        progress.earlier = ended_before(self._store, decision)
        self._job.wake()
        return progress

    def go_on(self, decision: Decision) -> None:
        """Continues a decision that was written before the start and may be partly carried out."""
        decision.left = sum(each.number for each in decision.ranges)
        progress = self.begin(decision)
        if decision.verdict == TRANSACTION_COMMIT:
            progress.scan = self._store.records_with(b"", decision.physical_offset)
            progress.scan_end = self._store.max_physical_offset

    def _go_on(self) -> float | None:
        end = monotonic() + SLICE_S
        while self.open:
            op_offset, progress = next(iter(self.open.items()))
            # Continues the decisions in rotation, so that a blocked decision does not block the others.
            self.open.move_to_end(op_offset)
            try:
                with self._store.ahead_of_wait_queue():
                    self._step(progress)
            except StoreBusy:
                return PREALLOCATION_RETRY_S
            except RequestRefused as e:
                if is_passing(e):
                    raise
                log.error("a half message that is to be committed can't be stored where it is to go: %s", e)
                self._pass(progress.decision, 1)
            if monotonic() >= end:
                break
        self._check.step_over()
        return 0.0 if self.open else None

    def _step(self, progress: DecisionProgress) -> None:
        """Ends some half messages. After StoreBusy, StoreError or RequestRefused, none of them has ended."""
        decision = progress.decision
        if progress.earlier is not None:
            self._look_up(progress, progress.earlier)
        elif progress.scan is not None:
            self._scan(progress)
        elif decision.index == len(decision.ranges):
            self._finish(progress)
        else:
            current = decision.ranges[decision.index]
            offset = current.half_offset + decision.done
            end = min(offset + _STEP, current.end)
            if progress.ended:
                is_ended = offset in progress.ended
                end = next((each for each in range(offset + 1, end) if (each in progress.ended) != is_ended), end)
                if is_ended:
                    self._pass(decision, end - offset)
                    return
            queue = half_queue(self._store)
            units = queue.units(offset, end - offset)
            if units:
                self._end_some(progress, offset, units)
            else:
                end = min(queue.next_file_offset(offset), current.end)
                log.error("half messages %d to %d, which are to be ended, have been deleted", offset, end - 1)
                self._pass(decision, end - offset)

    def _end_some(self, progress: DecisionProgress, offset: int, units: bytes) -> None:
        """Ends the first of these half messages, and all directly following ones with the same tail."""
        decision = progress.decision
        places, sizes, tags_codes = zip(*UNIT.iter_unpack(units), strict=True)
        copies = self._copies(progress.tail, offset, places, sizes)
        if not copies:
            # The tail of the first half message differs from the last batch's tail.
            record = self._read(offset, places[0])
            if record is None or not self._is_allowed(progress, record):
                self._pass(decision, 1)
                return
            progress.tail = self._tail(record)
            copies = self._copies(progress.tail, offset, places, sizes)
            if not copies:
                self._end_alone(progress, record)
                return
        tail = progress.tail
        assert tail is not None
        done = bisect_right(places, progress.committed_up_to, 0, len(copies))
        if decision.verdict == TRANSACTION_COMMIT and done < len(copies):
            batch = self._store.begin_batch(self._store.queue(tail.topic, tail.queue_id), 0, 0, bytes(HOST_SIZE_V4), 0)
            for copy, tags_code in zip(copies[done:], tags_codes[done:], strict=False):
                batch.add_encoded(copy, tags_code)
            self._appender.append_batch(batch)
        [born_ms] = _born_timestamp(copies[0], 0)
        self._ended(progress, offset, len(copies), tail.topic, born_ms)

    def _end_alone(self, progress: DecisionProgress, record: Record) -> None:
        """Ends a half message that was sent without a batch, or whose record cannot be copied."""
        if progress.decision.verdict == TRANSACTION_COMMIT and record.physical_offset > progress.committed_up_to:
            self._commit_one(record)
        self._ended(progress, record.queue_offset, 1, target_topic(record), record.born_timestamp)

    def _ended(self, progress: DecisionProgress, offset: int, count: int, topic: str, born_ms: int) -> None:
        self._counts.ended(progress.decision.verdict, topic, now_ms() - born_ms, count)
        self._counts.close(topic, count)
        if progress.committed_up_to < 0:
            is_enough = self._ops.add_run(offset, offset + count)
        else:
            new = (each for each in range(offset, offset + count) if not self._check.is_ended(each))
            is_enough = max(map(self._ops.add, new), default=False)
        self._ops_added(is_enough)
        self._pass(progress.decision, count)

    def _copies(self, tail: _Tail | None, offset: int, places: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Returns the committed records of the first half messages, up to a different tail or a gap in the log."""
        if tail is None:
            return []
        behind = list(accumulate(sizes, initial=places[0]))
        # Usually there is no gap, because a batch is stored in one piece.
        count = min(bisect_right(behind, places[0] + _STEP_BYTES), len(places))
        if places[:count] != tuple(behind[:count]):
            count = next(i for i, place in enumerate(places) if place != behind[i])
        halves = self._store.bytes_at(places[0], behind[count] - places[0])
        return tail.copies.make(halves, sizes[:count], offset, places[0])

    def _read(self, half_offset: int, physical_offset: int) -> Record | None:
        try:
            record = self._store.read_record(physical_offset)
            if (record.queue_offset, record.topic) == (half_offset, _HALF_TOPIC):
                return record
            why: object = "another record stands there"
        except GantryError as e:
            why = e
        log.error("half message %d, which is to be ended, can't be read: %s", half_offset, why)
        return None

    def _is_allowed(self, progress: DecisionProgress, record: Record) -> bool:
        """Returns True if the decision may end this half message. The request checked only each range's ends."""
        fields = decode_properties(record.properties)
        target = destination(fields)
        is_of_group = fields.get(names.PRODUCER_GROUP) == progress.decision.group
        if is_of_group and target is not None and target[0] in progress.topics:
            # A copy does not count, because the ranges also contain the half message from which it was copied.
            return not progress.decision.ranges.has(first_half_offset(fields))
        log.error("half message %d isn't of the transaction that a range with it ends", record.queue_offset)
        return False

    def _tail(self, record: Record) -> _Tail | None:
        """Returns the tail of a batch's half message. Returns None for a half message that was sent without a batch.

        Also returns None if `enabledAppendPropCRC` is on or the message has no valid target.
        """
        fields = decode_properties(record.properties)
        target = destination(fields)
        if GANTRY_HALF not in fields or target is None or self._store.config.enabled_append_prop_crc:
            return None
        immunity_s = fields.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        staying, waiting = batch_properties(fields.get(names.PRODUCER_GROUP, ""), immunity_s, *target)
        topic, queue_id = target
        copies = CommittedCopies(_HALF_TOPIC, topic.encode(), queue_id, staying + waiting, len(waiting))
        return _Tail(topic, queue_id, copies)

    @staticmethod
    def _pass(decision: Decision, count: int) -> None:
        decision.left -= count
        decision.done += count
        if decision.done >= decision.ranges[decision.index].number:
            decision.index, decision.done = decision.index + 1, 0

    @staticmethod
    def _look_up(progress: DecisionProgress, earlier: Iterator[tuple[int, list[int]]]) -> None:
        found = next(earlier, None)
        if found is None:
            progress.earlier = None
        else:
            op_offset, half_offsets = found
            progress.ended.add_all(half_offsets, op_offset)

    def _scan(self, progress: DecisionProgress) -> None:
        """Scans a part of the log for messages that the decision committed before the broker was restarted."""
        assert progress.scan is not None
        try:
            for _ in range(_SCAN_STEP):
                record = next(progress.scan, None)
                if record is None or record.physical_offset >= progress.scan_end:
                    progress.scan = None
                    return
                place = record.prepared_transaction_offset
                if place > progress.committed_up_to and self._is_committed_by(progress.decision, record):
                    progress.committed_up_to = place
        except RecordError as e:
            log.error("the log can't be read for what was committed before the start: %s", e)
            progress.scan = None

    def _is_committed_by(self, decision: Decision, record: Record) -> bool:
        """Returns True if a record is the committed message of a half message of the decision."""
        half = half_of(self._store, record)
        return half is not None and decision.ranges.has(half.queue_offset)

    def _finish(self, progress: DecisionProgress) -> None:
        self._check.write_ops()
        del self.open[progress.decision.op_offset]
        self._check.decision_done(progress.decision)
        progress.done.set()
