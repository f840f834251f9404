"""Goes through the half messages whose transactions haven't ended (`TransactionalMessageServiceImpl.check`).

A round reads the op messages, steps over the half messages that they name, and has the producer asked about each other
one that is old enough. Before that the half message is stored once more, at the end of its queue, so that the queue is
always worked off from its head: two offsets, of the half and the op queue, are all that has to be kept.

What only waits (its producer is away, or said not to be asked yet) is stored once more, too, so that those behind it
get their turn; but a round that finds nothing else to do leaves all where they are. In Java's broker messages that wait
are stored again in each round.

A round is an iterator that gives control back after each few messages, so that it never holds the loop for long.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from struct import error as StructError
from typing import NamedTuple

from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.transaction.half_messages import (
    destination,
    first_half_offset,
    half_queue,
    number_of,
)
from gantrymq.broker.transaction.next_step import (
    CanAsk,
    NextStep,
    born_ms,
    is_given_up,
    next_step,
)
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.broker.transaction.states import TransactionStates
from gantrymq.errors import ClientError, GantryError, ProtocolError, RequestRefused, StoreBusy
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record, encode_again
from gantrymq.protocol.topic_name import TRANSACTION_CHECK_MAX_TIME_TOPIC, TRANSACTION_HALF_TOPIC
from gantrymq.store.consume_queue import UNIT, ConsumeQueue
from gantrymq.store.message_store import PutResult

log = peer_log(__name__)

#: Half messages that are read in one slice of a round, and their bytes.
_BATCH = 32
_BATCH_BYTES = 1024 * 1024
#: Behind so many they may not be left where they are: what is known of those that have ended takes memory.
_MOST_WAITING = 10_000


class Question(NamedTuple):
    """CHECK_TRANSACTION_STATE about a message for `topic`, for any producer of the group."""

    group: str
    topic: str
    request: RemotingCommand


class _NotYet(Exception):
    """A half message can be dealt with in a later round only: the topic where it is to go isn't on the disk."""


class TransactionCheck(TransactionStates):
    """Rounds over the half messages of one broker, after `load`."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        topics: BrokerTopics,
        offsets: ConsumerOffsets,
        ops: OpMessages,
    ) -> None:
        super().__init__(config, appender, offsets, ops)
        self._config = config
        self._topics = topics
        #: The last step of a round met a file that is being made: the next one is for ROOM_S later.
        self.waits_for_room = False
        #: Half messages of batches that were dropped since the start.
        self.dropped = 0

    def round(self, now_ms: int, can_ask: CanAsk) -> Iterator[list[Question]]:
        """One round; each step gives the questions to send then. Raises GantryError when the store fails."""
        # What is stored again meanwhile is for the next round.
        end = half_queue(self._store).max_offset
        dropped = self.dropped
        while self.catch_up() or self._ends.step_over():
            yield []
        has_work = self._appender.elsewhere is not None or (yield from self._has_work(now_ms, end, can_ask))
        while has_work:
            # Ops before halves, every time: what ended meanwhile isn't asked about.
            while self.read_ops():
                yield []
            if self._ends.step_over():
                yield []
                continue
            questions, is_more = self._check_batch(now_ms, end, can_ask)
            yield questions
            if not is_more:
                break
        if self.dropped > dropped:
            log.warning("%d half messages of batches weren't ended in time: rolled back", self.dropped - dropped)
        self._ends.forget_passed()

    # -- half messages ------------------------------------------------------------------------------------------

    def _has_work(self, now_ms: int, end: int, can_ask: CanAsk) -> Generator[list[Question], None, bool]:
        """Whether there is more to do before a half offset than to store again what waits; in steps."""
        queue = half_queue(self._store)
        offset = self._ends.half_offset
        if end - offset > _MOST_WAITING:
            return True
        while offset < end:
            # Damaged ones are counted when they are passed.
            units = queue.units(offset, min(_BATCH, end - offset))
            if not units:
                return True
            size = 0
            for physical_offset, length, _ in UNIT.iter_unpack(units):
                if not self._ends.has(offset):
                    try:
                        record = self._store.read_record(physical_offset)
                        what = self._next(record, decode_properties(record.properties), now_ms, can_ask)
                    except (GantryError, ValueError):
                        return True
                    if what is NextStep.YOUNG:
                        return False
                    if what is not NextStep.WAITS:
                        return True
                offset += 1
                size += length
                if size >= _BATCH_BYTES:
                    break
            yield []
        return False

    def _check_batch(self, now_ms: int, end: int, can_ask: CanAsk) -> tuple[list[Question], bool]:
        """(questions, whether there may be more half messages to look at in this round)."""
        questions: list[Question] = []
        queue = half_queue(self._store)
        start, size = self._ends.half_offset, 0
        self.waits_for_room = False
        for next_offset, record in self._reader.records(queue, start, _BATCH):
            if record is not None:
                if self._ends.half_offset >= end:
                    return questions, False
                try:
                    with self._store.ahead_of_line():
                        is_old = self._ends.take(self._ends.half_offset) or self._check(
                            record, now_ms, can_ask, questions
                        )
                except StoreBusy:
                    # The rest of a round of thousands needn't wait for the next one.
                    self.waits_for_room = True
                    return questions, True
                except _NotYet:
                    return questions, False
                except (ProtocolError, ClientError, ValueError, StructError) as e:
                    # Once more it would come to the same, with another copy stored each time.
                    self._reader.skip(queue, record.queue_offset, record.physical_offset, e)
                    is_old = True
                if not is_old:
                    return questions, False
                size += record.size
            self._ends.pass_to(next_offset)
            if size >= _BATCH_BYTES:
                break
        return questions, self._ends.half_offset != start

    def _check(self, record: Record, now_ms: int, can_ask: CanAsk, questions: list[Question]) -> bool:
        """Deals with a half message that hasn't ended; False when it is too young, as are those behind it."""
        fields = decode_properties(record.properties)
        if self._appender.elsewhere is not None:
            return self._give_away(record, fields)
        what = self._next(record, fields, now_ms, can_ask)
        if what is NextStep.YOUNG:
            return False
        if what is NextStep.GIVE_UP:
            self._discard(record, fields)
        elif what is NextStep.ENDED:
            # The end stays recorded, because other copies may be ahead.
            pass
        elif what is NextStep.DROP:
            self.dropped += 1
        elif what is NextStep.WAITS:
            self._put_back(record, fields)
        else:
            times = number_of(fields.get(names.TRANSACTION_CHECK_TIMES), 0)
            fields[names.TRANSACTION_CHECK_TIMES] = str(times + 1)
            copy = self._put_back(record, fields)
            question = self._question(record, fields, copy) if copy else None
            if question:
                questions.append(question)
        return True

    def _give_away(self, record: Record, fields: dict[str, str]) -> bool:
        """A broker that stands in for a master has another one take it, and ask; False where it can't.

        While a decision isn't carried out that is left to the master.
        """
        if self.decisions.open:
            return False
        if not self._ends.has(first_half_offset(fields)):
            # Another broker's half queue has other offsets.
            fields.pop(names.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
            self._append(record, half_queue(self._store), encode_properties(fields))
        return True

    def _next(self, record: Record, fields: dict[str, str], now_ms: int, can_ask: CanAsk) -> NextStep:
        """Changes nothing."""
        first_offset = first_half_offset(fields)
        if self.decisions.open and self.decisions.has(record.queue_offset if first_offset < 0 else first_offset):
            return NextStep.YOUNG
        if self._ends.has(first_offset):
            return NextStep.ENDED
        if is_given_up(record, fields, now_ms, self._config):
            return NextStep.GIVE_UP
        return next_step(record, fields, now_ms, can_ask, self._config)

    def _put_back(self, record: Record, fields: dict[str, str]) -> PutResult | None:
        """Stores it at the end of its queue; None when that can't be, and it is put aside."""
        first = _note_first(record, fields)
        result = self._append(record, half_queue(self._store), encode_properties(fields))
        if result is None:
            self._discard(record, decode_properties(record.properties))
        else:
            self._ends.copied(result.queue_offset, first)
        return result

    def _discard(self, record: Record, fields: dict[str, str]) -> None:
        """Nobody is asked any more (`DefaultTransactionalMessageCheckListener.resolveDiscardMsg`)."""
        first = _note_first(record, fields)
        if first in self.given_up:
            # Another copy was given up, or the broker was killed before it stored its progress.
            return
        topic = self._topics.create_if_absent(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1)
        if not self._topics.is_written(topic.topic_name):
            raise _NotYet
        properties = encode_properties(fields)
        if len(properties) > self._appender.max_properties_length:
            properties = record.properties
        result = self._append(record, self._store.queue(topic.topic_name, 0), properties, record.physical_offset)
        if result and properties is not record.properties:
            self.given_up.add(first, result.queue_offset)
        if result:
            log.error(
                "half message %s: no answer came, nobody is asked any more; it is kept in %s as %s",
                encode_offset_message_id(record.store_host, record.physical_offset),
                TRANSACTION_CHECK_MAX_TIME_TOPIC,
                encode_offset_message_id(self._appender.store_host, result.physical_offset),
            )

    def _append(
        self, record: Record, queue: ConsumeQueue, properties: bytes, prepared_transaction_offset: int = 0
    ) -> PutResult | None:
        code = tags_code(names.find_property(properties, b"TAGS") or b"")
        # The copy is as old as the first one, whatever its producer's clock says.
        again = record._replace(born_timestamp=born_ms(record), prepared_transaction_offset=prepared_transaction_offset)
        try:
            return self._appender.append_again(again, queue, properties, code, record.reconsume_times)
        except RequestRefused as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # Another broker took it, whose half messages leave no room for what is noted in them. It must not stop all
            # behind it.
            log.error(
                "half message %s can't be stored again: %s",
                encode_offset_message_id(record.store_host, record.physical_offset),
                e,
            )
            return None

    def _question(self, record: Record, fields: dict[str, str], copy: PutResult) -> Question | None:
        """What the producer is asked; the record looks as if it stood where it is to go."""
        target = destination(fields)
        if target is None:
            log.error("half message at %d doesn't say where it is to go: nobody is asked", record.physical_offset)
            return None
        topic, queue_id = target
        unique_key = fields.get(names.UNIQUE_KEY)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.physical_offset,
            topic=TRANSACTION_HALF_TOPIC,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=encode_offset_message_id(self._appender.store_host, copy.physical_offset),
            bname=self._config.broker_name,
        )
        asked = record._replace(
            queue_id=queue_id,
            queue_offset=copy.queue_offset,
            physical_offset=copy.physical_offset,
            topic=topic.encode(),
            properties=encode_properties(fields),
        )
        request = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, encode_again(asked))
        return Question(fields.get(names.PRODUCER_GROUP, ""), topic, request)


def _note_first(record: Record, fields: dict[str, str]) -> int:
    """Returns the first queue offset of a half message, and adds it to the properties of its next copy."""
    first = first_half_offset(fields)
    if first < 0:
        first = record.queue_offset
        fields[names.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(first)
    return first
