"""Open transactions that the broker has given up. Their half messages are in TRANS_CHECK_MAX_TIME_TOPIC.

A producer or an operator (`gantry admin givenUpTransactions`) can still end such a transaction. The first commit or
rollback counts. Op messages in queue 1 of their topic list the transactions that have ended.

In each record, the property TRAN_PREPARED_QUEUE_OFFSET is the queue offset of the half message, and the field
`prepared_transaction_offset` is the physical offset of a copy of it. Records of Java brokers contain neither of these
offsets and are ignored here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gantrymq.broker.append import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.transaction.half_messages import first_half_offset_of
from gantrymq.broker.transaction.op_messages import OpMessages, half_offsets
from gantrymq.errors import GantryError
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import TRANSACTION_CHECK_MAX_TIME_TOPIC, TRANSACTION_OP_TOPIC
from gantrymq.store.consume_queue import UNIT

#: The queue of op messages that list offsets of TRANS_CHECK_MAX_TIME_TOPIC.
_OP_QUEUE_ID = 1
#: Number of records that are read in one step.
_STEP = 32
#: Maximum number of half messages in memory. The limit is reached only if producers end none of their transactions.
MAX_OPEN = 500_000


class GivenUp:
    """Stores those given-up half messages of one broker that have records in the log.

    It has at most MAX_OPEN half messages. Each one uses 100 bytes.
    """

    def __init__(self, config: BrokerConfig, appender: Appender) -> None:
        self._store = appender.store
        self._ops = OpMessages(config, appender, _OP_QUEUE_ID)
        #: First half offset -> offset in TRANS_CHECK_MAX_TIME_TOPIC.
        self._open: OrderedDict[int, int] = OrderedDict()
        #: The largest first half offset that was dropped because of MAX_OPEN; -1 if none was dropped.
        self._forgotten = -1

    def clear(self) -> None:
        """Removes all entries. `read` follows."""
        self._open.clear()
        self._forgotten = -1
        self._ops.clear()

    def read(self) -> Iterator[int | None]:
        """Yields each ended half message's first half offset, and None after each step. Raises StoreError."""
        self.clear()
        ended = set[int]()
        for op_message in self._records(TRANSACTION_OP_TOPIC, _OP_QUEUE_ID):
            if op_message is None:
                yield None
            else:
                ended.update(half_offsets(op_message))
        for record in self._records(TRANSACTION_CHECK_MAX_TIME_TOPIC, 0):
            if record is None:
                yield None
            elif (first := first_half_offset_of(record.properties)) >= 0:
                if record.queue_offset in ended:
                    yield first
                else:
                    self.add(first, record.queue_offset)

    def _records(self, topic: str, queue_id: int) -> Iterator[Record | None]:
        """Yields the readable records of a queue, and None after each step."""
        queue = self._store.find_queue(topic, queue_id)
        offset = queue.min_offset if queue is not None else 0
        while queue is not None and (units := queue.units(offset, _STEP)):
            for physical_offset, _, _ in UNIT.iter_unpack(units):
                try:
                    record = self._store.read_record(physical_offset)
                except GantryError:
                    continue
                if record.topic == queue.topic_bytes:
                    yield record
            offset += len(units) // UNIT.size
            yield None

    def __contains__(self, first: int) -> bool:
        return first in self._open

    @property
    def begin(self) -> int | None:
        """The physical offset of the oldest record; None if there is none."""
        queue = self._store.find_queue(TRANSACTION_CHECK_MAX_TIME_TOPIC, 0)
        unit = queue.unit(next(iter(self._open.values()))) if queue is not None and self._open else None
        return None if unit is None else unit[0]

    def add(self, first: int, offset: int) -> None:
        """Adds the half message that was first stored at `first`. `offset` is the offset of its record."""
        self._open[first] = offset
        # Offsets ascend. If the log lacks a record, it also lacks the half message and its copies, which are older.
        queue = self._store.find_queue(TRANSACTION_CHECK_MAX_TIME_TOPIC, 0)
        begin = queue.min_offset if queue is not None else 0
        while self._open and self._open[oldest := next(iter(self._open))] < begin:
            del self._open[oldest]
        if len(self._open) > MAX_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def is_forgotten(self, first: int) -> bool:
        """Returns True if the half message that was first stored at `first` may have been dropped (MAX_OPEN)."""
        return first <= self._forgotten and first not in self._open

    def end(self, first: int) -> None:
        """Removes a half message whose transaction has ended or is checked again. `write` stores the removal."""
        offset = self._open.pop(first, None)
        if offset is not None:
            self._ops.add(offset)

    def write(self) -> None:
        """Stores the removals. Raises GantryError; the next call stores the remaining removals."""
        self._ops.write(lambda op_offset, offsets: None)
