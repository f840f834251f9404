"""The open and the ended transactions, read from the log after a start and after each change of role.

Op messages list the transactions that have ended. Commits since the last op message are found in the log itself
(`commit_scan`), so they are neither checked nor stored again. A half message and its copies count as one: the producer
may commit or roll back any of them, and the first request counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from gantrymq.broker.append import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.queue_reader import QueueReader
from gantrymq.broker.tables import ConsumerOffsets, TransactionCounts
from gantrymq.broker.transaction.commit_scan import committed_halves
from gantrymq.broker.transaction.decisions import Decision, Decisions, is_decision
from gantrymq.broker.transaction.given_up import GivenUp
from gantrymq.broker.transaction.half_messages import first_half_offset_of, half_queue, target_topic
from gantrymq.broker.transaction.op_message_index import OpMessageIndex
from gantrymq.broker.transaction.op_messages import OpMessages, half_offsets, op_queue
from gantrymq.errors import GantryError
from gantrymq.protocol.topic_name import TRANSACTION_GROUP
from gantrymq.store.consume_queue import UNIT, ConsumeQueue

#: Number of half messages that are read in one step.
_BATCH = 32
#: Number of op messages that are read in one step. Each one may list some hundred half messages.
_OP_BATCH = 8


class TransactionStates:
    """Stores the ended transactions of one broker. `ops` has the ended transactions that no op message lists yet.

    After `load`, the caller repeats `catch_up` until `is_ready`. Only then are the ended transactions complete.
    """

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        *,
        offsets: ConsumerOffsets,
        ops: OpMessages,
        counts: TransactionCounts,
    ) -> None:
        self._appender = appender
        self._store = appender.store
        self._offsets = offsets
        self._ops = ops
        self._counts = counts
        self._reader = QueueReader(appender.store, "transactions")
        #: The half messages that have ended, and the offset before which all of them have ended.
        self.ends = OpMessageIndex(ops)
        self.given_up = GivenUp(config, appender)
        #: Decisions about many half messages at once.
        self.decisions = Decisions()
        #: Reads the rest of the log; None after everything has been read.
        self._reading: Iterator[None] | None = None

    def load(self) -> None:
        """Starts to read at the stored progress. The store must be open and the consumer offsets loaded."""
        self.decisions = Decisions()
        self.ends.begin(
            self._start_of(half_queue(self._store), self._offsets), self._start_of(op_queue(self._store), self._offsets)
        )
        self._reading = self._read()

    @staticmethod
    def _start_of(queue: ConsumeQueue, offsets: ConsumerOffsets) -> int:
        offset = offsets.query(TRANSACTION_GROUP, queue.topic, queue.queue_id)
        # A power failure can remove the end of the queue. Its offsets are then assigned to new messages.
        return queue.min_offset if offset is None else min(offset, queue.max_offset)

    @property
    def progress(self) -> tuple[int, int]:
        """The progress as (half offset, op offset). Nothing before these offsets is needed."""
        return self.ends.half_offset, self.ends.first_op_offset

    @property
    def open_count(self) -> int:
        """The number of half messages whose transaction is open, according to the op messages that have been read."""
        end = half_queue(self._store).max_offset
        return end - self.ends.half_offset - self.ends.count_ahead()

    @property
    def skipped(self) -> int:
        """The number of half messages and op messages that could not be read since the start."""
        return self._reader.skipped

    @property
    def is_ready(self) -> bool:
        """True if everything has been read."""
        return self._reading is None

    def catch_up(self) -> bool:
        """Reads the next part of the log about transactions. Returns True if there is more. Raises StoreError."""
        if self._reading is None:
            return self.read_ops()
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
        except GantryError:
            self._reading = self._read()
            raise
        return self._reading is not None

    def _read(self) -> Iterator[None]:
        """Reads the log in steps. It can be repeated, because nothing is written before its end."""
        while self.read_ops():
            yield
        yield from self._read_half_messages()
        for first in self.given_up.read():
            if first is None:
                yield
            elif first >= self.ends.half_offset and not self.ends.has(first):
                # The broker was killed before it wrote the op message of the half message.
                self._close(first)
                self._ops.add(first)
        begin = self.given_up.begin
        unit = half_queue(self._store).unit(self.ends.half_offset)
        if unit is not None and (begin is None or unit[0] < begin):
            begin = unit[0]
        if begin is None:
            # Every transaction has ended.
            return
        for half in committed_halves(self._store, begin):
            if half is None:
                yield
            elif not self.decisions.has(half.queue_offset):
                first = first_half_offset_of(half.properties)
                if self.is_counted(half.queue_offset, first):
                    self._counts.close(target_topic(half))
                self.ended(half.queue_offset, first)

    def _close(self, half_offset: int) -> None:
        unit = half_queue(self._store).unit(half_offset)
        with suppress(GantryError):
            if unit is not None:
                self._counts.close(target_topic(self._store.read_record(unit[0])))

    def _read_half_messages(self) -> Iterator[None]:
        """Finds the copies, and counts open half messages by topic. `TransactionCounts.stored` counts later ones."""
        queue = half_queue(self._store)
        start = offset = self.ends.half_offset
        end = queue.max_offset
        self._counts.open.clear()
        #: Half messages before `start` that have a copy.
        copied = set[int]()
        while offset < end:
            units = queue.units(offset, min(_BATCH, end - offset))
            if not units:
                offset = queue.next_file_offset(offset)
            for physical_offset, _, _ in UNIT.iter_unpack(units):
                # Damaged records are counted when a round passes them.
                with suppress(GantryError):
                    record = self._store.read_record(physical_offset)
                    first = first_half_offset_of(record.properties)
                    if first >= 0:
                        self.ends.copied(offset, first)
                    is_first = first < 0 or (first < start and first not in copied)
                    if is_first and not self.ends.has(offset) and not self.ends.has(first):
                        self._counts.stored(target_topic(record))
                    if 0 <= first < start:
                        copied.add(first)
                offset += 1
            yield

    def read_ops(self) -> bool:
        """Reads some new op messages. Returns False if there were none. Raises StoreError."""
        ends = self.ends
        start = ends.op_read
        for next_offset, record in self._reader.records(op_queue(self._store), start, _OP_BATCH):
            if record is not None and is_decision(record):
                if (decision := Decision.read(record)) is not None:
                    self._decided(decision)
            elif record is not None:
                ends.note(record.queue_offset, half_offsets(record))
            ends.op_read = next_offset
        return ends.op_read != start

    def write_ops(self) -> None:
        """Stores which transactions have ended. On GantryError, the remaining ones are left for the next call."""
        # Must precede `ops`: an op message of `ops` without GANTRY_MORE means that all earlier commits are listed.
        self.given_up.write()
        self._ops.write(self._op_written)

    def _op_written(self, op_offset: int, offsets: list[int]) -> None:
        """Records a written op message without reading it back, if all earlier ones have been read."""
        if op_offset == self.ends.op_read:
            self.ends.note(op_offset, offsets)
            self.ends.read_to(op_offset + 1)

    def decision_written(self, decision: Decision) -> None:
        """Records a written decision. All op messages before it have been read."""
        self.ends.read_to(decision.op_offset + 1)
        self._decided(decision)

    def decision_done(self, decision: Decision) -> None:
        """Removes a decision after all of its half messages have ended."""
        del self.decisions.open[decision.op_offset]
        self.ends.let_go(decision.op_offset)

    def _decided(self, decision: Decision) -> None:
        self.decisions.open[decision.op_offset] = decision
        # The progress in the op queue must not pass an open decision: the next start reads it from there.
        self.ends.keep(decision.op_offset)

    def is_ended(self, half_offset: int) -> bool:
        """Returns True if a half message is recorded as ended."""
        return self.ends.has(half_offset)

    def is_over(self, half_offset: int, first: int) -> bool:
        """Returns True if the transaction of a half message has ended.

        `first` is the queue offset of the first half message, -1 if this one is no copy.
        """
        first = half_offset if first < 0 else first
        if self.ends.has(first) or self.ends.has(half_offset):
            return True
        return self.ends.is_passed(half_offset, first) and first not in self.given_up

    def is_counted(self, half_offset: int, first: int) -> bool:
        """Returns True if the half message counts in `TransactionCounts.open`: it is open and is still checked."""
        first = half_offset if first < 0 else first
        return first not in self.given_up and not self.is_over(half_offset, first)

    def ended(self, half_offset: int, first: int) -> bool:
        """Records the end of a transaction. Returns True if an op message should be written at once."""
        first = half_offset if first < 0 else first
        self.given_up.end(first)
        is_enough = False if self.ends.has(first) else self._ops.add(first)
        if first != half_offset >= self.ends.half_offset and not self.ends.has(half_offset):
            is_enough = self._ops.add(half_offset)
        return is_enough

    def copied(self, half_offset: int, first: int) -> None:
        """Records a copy of the half message that was first stored at `first`."""
        self.ends.copied(half_offset, first)

    def step_over(self) -> None:
        """Skips some ended half messages at the head of the queue, so that their entries do not use memory."""
        self.ends.step_over()
