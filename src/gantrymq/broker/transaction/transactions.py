"""Commit, rollback and periodic checks of transactions.

If a transaction is open for longer than `transactionTimeOut` (6 s), the broker checks its state with the producers.

Sources: broker/processor/EndTransactionProcessor, broker/transaction/TransactionalMessageCheckService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gantrymq.broker.append import PREALLOCATION_RETRY_S, Appender, RequestWaits
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import Delays
from gantrymq.broker.feature import Feature
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.broker.replication import slave_refusal
from gantrymq.broker.transaction.check import CheckRequest, TransactionCheck
from gantrymq.broker.transaction.decision_executor import DecisionExecutor
from gantrymq.broker.transaction.decisions import name_of_verdict
from gantrymq.broker.transaction.half_messages import (
    destination,
    first_half_offset,
    first_half_offset_of,
    half_queue,
    target_topic,
)
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.broker.transaction.range_ends import RangeEnds
from gantrymq.errors import GantryError, RemotingError, RequestRefused, StoreBusy
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import GANTRY_HALF
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import (
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.queued_record import queued_record
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Maps the (queue, properties, tags code) of a delayed message to those under which it is stored until its time.
Redirect = Callable[[ConsumeQueue, bytes, int], tuple[ConsumeQueue, bytes, int]]

#: Returns True if the peer of a connection may send to a topic.
MaySend = Callable[[Connection, str], bool]

#: Timeout to send a check, in ms (`Broker2Client.checkProducerTransactionState`). The next round sends it again.
_CHECK_TIMEOUT_MS = 10
#: Largest number of group members that are tried for one check. The next check starts at the next member.
_MOST_LOOKED_AT = 64


class Transactions(Feature):
    """Ends and checks the transactions of one broker. `SendProcessor` stores their half messages.

    Attributes:
        ops: The ended transactions that are not in an op message yet.
        check: The open and the ended transactions, and the rounds of checks.
        counts: Half messages by topic.
        executor: Carries out the decisions about many half messages at once.
        range_ends: Handles the requests for such decisions.
    """

    def __init__(self, context: BrokerContext, *, appender: Appender, delays: Delays, waits: RequestWaits) -> None:
        config, jobs = context.config, context.jobs
        self._pending_responses = waits.flush
        self._config = config
        self._appender = appender
        self._store = appender.store
        self._members = context.members
        self._offsets = context.offsets
        self._redirect = delays.redirect
        self._may_send = context.access.may_send
        self._preallocation_waits = waits.files
        self._long_requests = context.long_requests
        self.counts = context.stats.transactions
        self.ops = OpMessages(config, appender)
        self.check = TransactionCheck(
            config, appender, topics=context.topics, offsets=context.offsets, ops=self.ops, counts=self.counts
        )
        self._op_reading = jobs.repeating("read which transactions have ended", self._read_ops)
        self._op_writing = jobs.repeating("write down which transactions have ended", self._write_ops)
        self._checking = jobs.repeating(
            "ask about open transactions", self._ask_about_open, config.transaction_check_interval / 1000
        )
        #: Number of producers that were tried for checks. It determines which group member is tried next.
        self._turn = 0
        self._saved = (-1, -1)
        #: Groups with open transactions but without a producer, which have been logged.
        self._absent: set[str] = set()
        self._is_master = False
        #: True on a slave: its master processes the transactions.
        self._follows = False
        self.executor = DecisionExecutor(
            appender,
            check=self.check,
            ops=self.ops,
            commit_one=self.commit,
            ops_added=self._ops_added,
            counts=self.counts,
            jobs=jobs,
        )
        self.range_ends = RangeEnds(
            context, appender=appender, check=self.check, ops=self.ops, executor=self.executor, waits=waits
        )
        context.events.topics_deleted.subscribe(lambda names, queues: self.counts.topics_deleted(names))

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.END_TRANSACTION: self.end_when_ready,
            RequestCode.END_HALF_MESSAGES: self.range_ends.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._preallocation_waits.holding(self.resume),
        }

    def load(self) -> None:
        """Loads the progress of the half messages from the consumer offsets, which must already be loaded."""
        self.check.load()

    async def become_master(self) -> None:
        """Starts the background work at the stored progress. After a failover, this is the former master's progress."""
        if self._follows:
            self._follows = False
            self.check.load()
        self._is_master = True
        self._op_reading.start(0.0)
        self._op_writing.start()
        self.executor.start()
        self.range_ends.start()
        self._checking.start()

    async def stand_in(self) -> None:
        """Starts as acting master: sends open half messages to other brokers, which check them."""
        self.check.load()
        self._checking.start(0.0)

    async def become_slave(self) -> None:
        """Stops the background work. The next master finds commits in the log, but may check rollbacks once more."""
        self._follows, self._is_master = True, False
        await self._end_work()
        self.ops.clear()
        self.executor.clear()
        self.range_ends.clear()
        self.counts.open.clear()
        self._absent.clear()

    async def _end_work(self) -> None:
        self._op_reading.cancel()
        self._op_writing.cancel()
        self.executor.cancel()
        await self._checking.stop()

    async def stop(self) -> None:
        """Stops the background work. On a master, stores the ended transactions and the progress of the rounds."""
        await self._end_work()
        if not self._is_master:
            return
        try:
            if self.check.is_ready:
                with self._store.waiting():
                    self.check.write_ops()
            await self._save(self.check.progress)
        except GantryError as e:
            log.error("can't store all ended transactions, so some are checked again: %s", e)

    # -- requests -----------------------------------------------------------------------------------------------

    def end_when_ready(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Like `end`, but first waits until all ended transactions have been read from the log."""
        if self.check.is_ready:
            return self._preallocation_waits.holding(self.end)(connection, request)
        return self._long_requests.run(connection, request, self._when_ready(connection, request))

    def _when_ready(self, connection: Connection, request: RemotingCommand) -> Steps:
        while self.check.catch_up():
            yield
        if not self._is_master:
            raise slave_refusal()
        return self._preallocation_waits.holding(self.end)(connection, request)

    def end(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles END_TRANSACTION: commits or rolls back. For the state "unknown" there is no response, as in Java."""
        header = request.read_header(EndTransactionRequestHeader)
        try:
            reply = self._end(header)
        except StoreBusy:
            raise
        except GantryError as e:
            # The request is usually one-way, so the producer does not receive the error.
            log.warning("transaction of %s at %d doesn't end: %s", connection.address, header.commit_log_offset, e)
            raise
        if isinstance(reply, RemotingCommand) and self._pending_responses.is_used and not request.is_oneway:
            # Works as for a send, except that the response contains no error after a timeout (`sendFinalMessage`).
            self._pending_responses.reply(connection, request, self._store.max_physical_offset, reply, late_codes=())
            return None
        return reply

    @property
    def skipped(self) -> int:
        """The number of half messages and op messages that could not be read since the start."""
        return self.check.skipped

    def open_count(self) -> int:
        """Returns the number of half messages whose transaction is open."""
        return self.check.open_count

    def _end(self, header: EndTransactionRequestHeader) -> Reply:
        verdict = header.commit_or_rollback
        if not verdict:
            return None
        if verdict not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        record = self._half_message(header)
        first = first_half_offset_of(record.properties)
        if self.check.is_over(record.queue_offset, first):
            if self.check.given_up.is_forgotten(record.queue_offset if first < 0 else first):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"it is unknown whether the transaction of half message {record.queue_offset} has ended, "
                    f"because too many later ones stayed open: look for it in {TRANSACTION_CHECK_MAX_TIME_TOPIC}",
                )
            # The first request counts. A producer repeats it if a response was lost or the broker checked twice.
            return RemotingCommand.response()
        if verdict == TRANSACTION_COMMIT:
            self._pending_responses.check()
            self.commit(record)
        topic = target_topic(record)
        self.counts.ended(verdict, topic, now_ms() - record.born_timestamp)
        if self.check.is_counted(record.queue_offset, first):
            self.counts.close(topic)
        self._ops_added(self.check.ended(record.queue_offset, first))
        return RemotingCommand.response()

    def _ops_added(self, is_enough: bool) -> None:
        self._op_writing.wake(0.0 if is_enough else self._config.transaction_op_batch_interval / 1000)

    def _half_message(self, header: EndTransactionRequestHeader) -> Record:
        """Returns the half message of a request. Raises RequestRefused in the same cases as Java."""
        try:
            record = queued_record(self._store, header.commit_log_offset)
        except GantryError as e:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"Find prepared transaction message failed: {e}") from e
        if record.topic != TRANSACTION_HALF_TOPIC.encode():
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        fields = decode_properties(record.properties)
        immunity_s = fields.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        if immunity_s and not header.from_transaction_check:
            age_ms = now_ms() - record.born_timestamp
            limit_ms = int(immunity_s) * 1000 if immunity_s.isdecimal() and len(immunity_s) < 20 else 0
            if age_ms > max(limit_ms, self._config.transaction_time_out):
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the transaction ends {age_ms} ms after its message was made, "
                    f"{names.CHECK_IMMUNITY_TIME_IN_SECONDS} is {immunity_s[:20]}: wait for the broker's check_request",
                )
        if fields.get(names.PRODUCER_GROUP) != header.producer_group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if destination(fields) is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the half message doesn't say where it is to go")
        if GANTRY_HALF in fields:
            self.range_ends.check_ready()
        first_offset = first_half_offset(fields)
        decision = self.check.decisions.about(record.queue_offset if first_offset < 0 else first_offset)
        if decision is not None:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"half message {record.queue_offset} is of a transaction that is being "
                f"{name_of_verdict(decision.verdict)} as a whole",
            )
        return record

    def commit(self, record: Record) -> None:
        """Stores a message in its target queue (`EndTransactionProcessor.endMessageTransaction`)."""
        fields = decode_properties(record.properties)
        target = destination(fields)
        assert target is not None
        del fields[names.REAL_TOPIC], fields[names.REAL_QUEUE_ID]
        fields.pop(GANTRY_HALF, None)
        fields.pop(names.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        queue = self._store.queue(*target)
        code = tags_code(fields.get(names.TAGS, "").encode())
        if b"DELAY" in record.properties or b"TIMER_DELIVER_MS" in record.properties:
            fields.pop(names.TRANSACTION_PREPARED, None)
            queue, properties, code = self._redirect(queue, encode_properties(fields), code)
        else:
            properties = encode_properties(fields)
        self._appender.append(
            queue,
            record.flag,
            record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
            record.born_timestamp,
            record.born_host,
            record.reconsume_times,
            record.body,
            properties,
            code,
            record.physical_offset,
            is_again=True,
        )

    def resume(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles RESUME_CHECK_HALF_MESSAGE: stores a given-up message as a half message again, with 0 checks."""
        header = request.read_header(ResumeCheckHalfMessageRequestHeader)
        try:
            record = queued_record(self._store, decode_offset_message_id(header.msg_id)[1])
        except GantryError as e:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{header.msg_id[:100]}: {e}") from e
        if record.topic != TRANSACTION_CHECK_MAX_TIME_TOPIC.encode():
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{header.msg_id} is not in {TRANSACTION_CHECK_MAX_TIME_TOPIC}"
            )
        fields = decode_properties(record.properties)
        first = first_half_offset(fields)
        if first >= 0 and first not in self.check.given_up:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the transaction of {header.msg_id} has ended, or is checked again already"
            )
        fields[names.TRANSACTION_CHECK_TIMES] = "0"
        code = tags_code(fields.get(names.TAGS, "").encode())
        copy = self._appender.append_again(
            record, half_queue(self._store), encode_properties(fields), code, record.reconsume_times
        )
        self.counts.stored(target_topic(record))
        if first >= 0:
            self.check.copied(copy.queue_offset, first)
            self.check.given_up.end(first)
            self._op_writing.wake()
        return RemotingCommand.response()

    # -- in the background --------------------------------------------------------------------------------------

    def _read_ops(self) -> float:
        """Reads the transactions that ended before the start. `_write_ops` stores later ones."""
        if self.check.catch_up():
            return 0.0
        self.range_ends.found()
        self._op_writing.wake()
        return inf

    def _write_ops(self) -> float:
        try:
            with self._store.ahead_of_wait_queue():
                self.check.write_ops()
        except StoreBusy:
            return PREALLOCATION_RETRY_S
        return inf

    async def _ask_about_open(self) -> float:
        members: dict[str, list[Connection]] = {}
        absent: set[str] = set()
        if not self.open_count():
            self._absent.clear()

        def can_check(group: str, topic: str) -> bool:
            if group not in members:
                members[group] = list(self._members.producers.get(group, ()))
            is_there = any(self._may_be_asked(member, topic) for member in members[group][:_MOST_LOOKED_AT])
            (self._absent.discard if is_there else absent.add)(group)
            return is_there

        try:
            for check_requests in self.check.round(now_ms(), can_check):
                for check_request in check_requests:
                    producer = self._producer(members[check_request.group], check_request.topic)
                    if producer is not None:
                        await self._send_check(producer, check_request)
                await asyncio.sleep(PREALLOCATION_RETRY_S if self.check.waits_for_file else 0)
        finally:
            if new := absent - self._absent:
                log.warning("no producer to check the open transactions of the groups %s with", ", ".join(sorted(new)))
                self._absent |= new
        await self._save(self.check.progress)
        return self._config.transaction_check_interval / 1000

    async def _send_check(self, producer: Connection, check_request: CheckRequest) -> None:
        try:
            await producer.invoke_oneway(check_request.request, _CHECK_TIMEOUT_MS)
        except RemotingError as e:
            log.warning("producer %s isn't asked about a transaction: %s", producer.address, e)

    def _producer(self, members: list[Connection], topic: str) -> Connection | None:
        """Returns the next group member that may send to the topic, or None (`ProducerManager.getAvailableChannel`).

        Checks the permission, because a check contains the message and any client can register in the group.
        """
        for _ in range(min(len(members), _MOST_LOOKED_AT)):
            self._turn += 1
            member = members[self._turn % len(members)]
            if self._may_be_asked(member, topic):
                return member
        return None

    def _may_be_asked(self, member: Connection, topic: str) -> bool:
        return not member.is_closed and self._may_send(member, topic)

    async def _save(self, progress: tuple[int, int]) -> None:
        """Stores the progress of the rounds, after their copies are flushed. Raises StoreError."""
        if progress == self._saved:
            return
        await log_flushed(self._store)
        for topic, offset in zip((TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC), progress, strict=True):
            self._offsets.commit(TRANSACTION_GROUP, topic, 0, offset)
        self._saved = progress
