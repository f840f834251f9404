"""Checks the half messages of open transactions in rounds (`TransactionalMessageServiceImpl.check`).

A round reads the op messages and skips the half messages that op messages list. For every other half message that is
old enough, the round stores a copy at the end of the half queue and sends a check to the producer. The progress of all
rounds is therefore two offsets, one in the half queue and one in the op queue.

Some half messages cannot be checked yet: no producer is connected, or CHECK_IMMUNITY_TIME_IN_SECONDS is not over. The
round also copies these *waiting* half messages to the end, so that they do not block later ones. A round without other
work leaves them in place. Java's broker copies them in each round.

A round is an iterator. It yields after a few messages, so that it does not block the event loop.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from struct import error as StructError
from typing import NamedTuple

from gantrymq.broker.append import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables import BrokerTopics, ConsumerOffsets, TransactionCounts
from gantrymq.broker.transaction.half_messages import (
    destination,
    first_half_offset,
    half_queue,
    number_of,
    target_topic,
)
from gantrymq.broker.transaction.next_step import (
    CanCheck,
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

#: Largest number of half messages in one step of a round.
_BATCH = 32
#: A step ends after half messages of this total size, in bytes.
_BATCH_BYTES = 1024 * 1024
#: With more half messages than this, waiting ones do not stay in place: ended ones behind them use memory.
_MOST_WAITING = 10_000


class CheckRequest(NamedTuple):
    """A CHECK_TRANSACTION_STATE request for a message to `topic`. The broker sends it to one producer of the group."""

    group: str
    topic: str
    request: RemotingCommand


class _NotYet(Exception):
    """Postpones a half message to a later round, because its target topic is not on disk yet."""


class TransactionCheck(TransactionStates):
    """Runs the rounds over the half messages of one broker. Call `load` before the first round."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        *,
        topics: BrokerTopics,
        offsets: ConsumerOffsets,
        ops: OpMessages,
        counts: TransactionCounts,
    ) -> None:
        super().__init__(config, appender, offsets=offsets, ops=ops, counts=counts)
        self._config = config
        self._topics = topics
        #: True if the last step needed a file that is not preallocated yet. The next step then runs after
        #: PREALLOCATION_RETRY_S.
        self.waits_for_file = False
        #: Number of half messages of batches that were rolled back after their time limit, since the start.
        self.dropped = 0

    def round(self, now_ms: int, can_check: CanCheck) -> Iterator[list[CheckRequest]]:
        """Runs one round. Each step yields the checks to send. Raises GantryError if the store fails."""
        # The copies that this round stores are after `end`. The next round checks them.
        end = half_queue(self._store).max_offset
        dropped = self.dropped
        while self.catch_up() or self.ends.step_over():
            yield []
        has_work = self._appender.escapes or (yield from self._has_work(now_ms, end, can_check))
        while has_work:
            # Reads new op messages first, so that transactions that ended during the round are not checked.
            while self.read_ops():
                yield []
            if self.ends.step_over():
                yield []
                continue
            check_requests, is_more = self._check_batch(now_ms, end, can_check)
            yield check_requests
            if not is_more:
                break
        if self.dropped > dropped:
            log.warning("%d half messages of batches weren't ended in time: rolled back", self.dropped - dropped)
        self.ends.forget_passed()
        if not self.open_count:
            # Half messages that can't be read, or that retention has deleted, were counted.
            self._counts.none_open()

    # -- half messages ------------------------------------------------------------------------------------------

    def _has_work(self, now_ms: int, end: int, can_check: CanCheck) -> Generator[list[CheckRequest], None, bool]:
        """Returns True if a round up to half offset `end` has work other than copying waiting half messages."""
        queue = half_queue(self._store)
        offset = self.ends.half_offset
        if end - offset > _MOST_WAITING:
            return True
        while offset < end:
            # Damaged records are counted later, when a round passes them.
            units = queue.units(offset, min(_BATCH, end - offset))
            if not units:
                return True
            size = 0
            for physical_offset, length, _ in UNIT.iter_unpack(units):
                if not self.ends.has(offset):
                    try:
                        record = self._store.read_record(physical_offset)
                        what = self._next(record, decode_properties(record.properties), now_ms, can_check)
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

    def _check_batch(self, now_ms: int, end: int, can_check: CanCheck) -> tuple[list[CheckRequest], bool]:
        """Processes some half messages. Returns (checks to send, True if the round may have more half messages)."""
        check_requests: list[CheckRequest] = []
        queue = half_queue(self._store)
        start, size = self.ends.half_offset, 0
        self.waits_for_file = False
        for next_offset, record in self._reader.records(queue, start, _BATCH):
            if record is not None:
                if self.ends.half_offset >= end:
                    return check_requests, False
                try:
                    with self._store.ahead_of_wait_queue():
                        is_old = self.ends.take(self.ends.half_offset) or self._check(
                            record, now_ms, can_check, check_requests
                        )
                except StoreBusy:
                    # The round continues after a short wait, because thousands of half messages may be left.
                    self.waits_for_file = True
                    return check_requests, True
                except _NotYet:
                    return check_requests, False
                except (ProtocolError, ClientError, ValueError, StructError) as e:
                    # A retry would fail again, with another copy stored each time.
                    self._reader.skip(queue, record.queue_offset, record.physical_offset, e)
                    is_old = True
                if not is_old:
                    return check_requests, False
                size += record.size
            self.ends.pass_to(next_offset)
            if size >= _BATCH_BYTES:
                break
        return check_requests, self.ends.half_offset != start

    def _check(self, record: Record, now_ms: int, can_check: CanCheck, check_requests: list[CheckRequest]) -> bool:
        """Processes an open half message. Returns False if it and thus all later ones are too young."""
        fields = decode_properties(record.properties)
        if self._appender.escapes:
            return self._give_away(record, fields)
        what = self._next(record, fields, now_ms, can_check)
        if what is NextStep.YOUNG:
            return False
        if what is NextStep.GIVE_UP:
            self.discard(record, fields)
        elif what is NextStep.ENDED:
            # The ended transaction stays in memory, because the queue may contain further copies of its half message.
            pass
        elif what is NextStep.DROP:
            self.dropped += 1
            self._counts.close(target_topic(record))
        elif what is NextStep.WAITS:
            self._put_back(record, fields)
        else:
            times = number_of(fields.get(names.TRANSACTION_CHECK_TIMES), 0)
            fields[names.TRANSACTION_CHECK_TIMES] = str(times + 1)
            copy = self._put_back(record, fields)
            check_request = self._check_request(record, fields, copy) if copy else None
            if check_request:
                check_requests.append(check_request)
        return True

    def _give_away(self, record: Record, fields: dict[str, str]) -> bool:
        """Sends a half message from an acting master to another broker, which then checks it.

        Returns False while a decision is open, because only the master carries out decisions.
        """
        if self.decisions.open:
            return False
        if not self.ends.has(first_half_offset(fields)):
            # In another broker's half queue, the offset is meaningless.
            fields.pop(names.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
            self._append(record, half_queue(self._store), encode_properties(fields))
            self._counts.close(target_topic(record))
        return True

    def _next(self, record: Record, fields: dict[str, str], now_ms: int, can_check: CanCheck) -> NextStep:
        """Returns the next step for a half message. Changes nothing."""
        first_offset = first_half_offset(fields)
        if self.decisions.open and self.decisions.has(record.queue_offset if first_offset < 0 else first_offset):
            return NextStep.YOUNG
        if self.ends.has(first_offset):
            return NextStep.ENDED
        if is_given_up(record, fields, now_ms, self._config):
            return NextStep.GIVE_UP
        return next_step(record, fields, now_ms, can_check, self._config)

    def _put_back(self, record: Record, fields: dict[str, str]) -> PutResult | None:
        """Stores a copy at the end of the half queue. If that is impossible, discards the message and returns None."""
        first = _note_first(record, fields)
        result = self._append(record, half_queue(self._store), encode_properties(fields))
        if result is None:
            self.discard(record, decode_properties(record.properties))
        else:
            self.ends.copied(result.queue_offset, first)
        return result

    def discard(self, record: Record, fields: dict[str, str]) -> None:
        """Gives up a half message: moves it to TRANS_CHECK_MAX_TIME_TOPIC. No more checks follow.

        Raises _NotYet while the topic is not on disk.
        Source: `DefaultTransactionalMessageCheckListener.resolveDiscardMsg`.
        """
        first = _note_first(record, fields)
        if first in self.given_up:
            # Another copy was given up before, or the broker was killed before it stored its progress.
            return
        topic = self._topics.create_if_absent(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1)
        if not self._topics.is_written(topic.topic_name):
            raise _NotYet
        properties = encode_properties(fields)
        if len(properties) > self._appender.max_properties_length:
            properties = record.properties
        result = self._append(record, self._store.queue(topic.topic_name, 0), properties, record.physical_offset)
        self._counts.close(target_topic(record))
        if result and properties is not record.properties:
            self.given_up.add(first, result.queue_offset)
        if result:
            log.error(
                "half message %s got no answer to its last check: it is moved to %s as %s",
                encode_offset_message_id(record.store_host, record.physical_offset),
                TRANSACTION_CHECK_MAX_TIME_TOPIC,
                encode_offset_message_id(self._appender.store_host, result.physical_offset),
            )

    def _append(
        self, record: Record, queue: ConsumeQueue, properties: bytes, prepared_transaction_offset: int = 0
    ) -> PutResult | None:
        code = tags_code(names.find_property(properties, b"TAGS") or b"")
        # The copy keeps the age of the first half message, even if the producer's clock is ahead.
        again = record._replace(born_timestamp=born_ms(record), prepared_transaction_offset=prepared_transaction_offset)
        try:
            return self._appender.append_again(again, queue, properties, code, record.reconsume_times)
        except RequestRefused as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # Another broker accepted this message, whose properties have no space for more. It must not block later
            # messages.
            log.error(
                "half message %s can't be stored again: %s",
                encode_offset_message_id(record.store_host, record.physical_offset),
                e,
            )
            return None

    def _check_request(self, record: Record, fields: dict[str, str], copy: PutResult) -> CheckRequest | None:
        """Returns the check for a half message. None if the topic or the queue in its properties is invalid."""
        target = destination(fields)
        if target is None:
            log.error("half message at %d has no valid target topic: it is not checked", record.physical_offset)
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
        return CheckRequest(fields.get(names.PRODUCER_GROUP, ""), topic, request)


def _note_first(record: Record, fields: dict[str, str]) -> int:
    """Returns the first queue offset of a half message, and adds it to the properties of its next copy."""
    first = first_half_offset(fields)
    if first < 0:
        first = record.queue_offset
        fields[names.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(first)
    return first
