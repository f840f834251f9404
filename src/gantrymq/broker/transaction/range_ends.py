"""END_HALF_MESSAGES: one request commits or rolls back ranges with thousands of half messages.

The broker checks the first and the last half message of each range. Then it writes the decision as one record
(`decisions`) and carries it out in the background (`decision_executor`), even if the connection closes or the broker
restarts. No consumer sees a message before the decision.

A commit in one batch would need memory for the whole transaction and would block the event loop.

Decision record: docs/decisions/transaction-ranges.md.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from contextlib import suppress

from gantrymq.broker.append import Appender, RequestWaits
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.replication import slave_refusal
from gantrymq.broker.transaction.check import TransactionCheck
from gantrymq.broker.transaction.decision_executor import DecisionExecutor, DecisionProgress
from gantrymq.broker.transaction.decisions import Decision, check_fits, name_of_verdict, written_decisions
from gantrymq.broker.transaction.half_batches import GRACE_MS
from gantrymq.broker.transaction.half_messages import destination, half_queue
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.errors import GantryError, IllegalMessage, RequestRefused, StoreBusy
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import GANTRY_HALF, MAX_RANGES, HalfRange, HalfRanges
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesRequestHeader, EndHalfMessagesResponseHeader
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.long_requests import Steps
from gantrymq.system.clock import now_ms

#: Number of ranges that are checked in one step.
_STEP = 20
#: Largest number of open decisions. Further requests get SYSTEM_BUSY.
MOST_OPEN = 1000
#: Largest number of ranges of all open decisions.
MOST_OPEN_RANGES = 4 * MAX_RANGES
#: Maximum number of decisions in the cache. The op queue is searched for all others.
_MOST_REMEMBERED = 1000
#: Longest time for which a request waits until its half messages have ended, in seconds. The response then contains the
#: number of half messages that are left.
WAIT_S = 3.0

_HALF_TOPIC = TRANSACTION_HALF_TOPIC.encode()


class RangeEnds:
    """Handles END_HALF_MESSAGES requests."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        check: TransactionCheck,
        ops: OpMessages,
        executor: DecisionExecutor,
        waits: RequestWaits,
    ) -> None:
        self._appender = appender
        self._store = appender.store
        self._check = check
        self._ops = ops
        self._executor = executor
        self._long_requests = context.long_requests
        self._preallocation_waits = waits.files
        self._pending_responses = waits.flush
        #: Decision id -> (offset in the op queue, verdict).
        self._remembered: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._is_master = False
        self._is_ready = False

    def start(self) -> None:
        """Called when the broker becomes master; `found` follows."""
        self._is_master = True

    def clear(self) -> None:
        """Called when the broker becomes slave. If it becomes master again, it reads the decisions from the log."""
        self._is_master = self._is_ready = False
        self._remembered.clear()

    def found(self) -> None:
        """Continues the open decisions from before the start. Called after all op messages have been read."""
        self._is_ready = True
        for decision in self._check.decisions.open.values():
            if decision.op_offset not in self._executor.open:
                self._executor.go_on(decision)
                self._remember(decision)

    def end(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles a request. The response follows when all half messages have ended, or after WAIT_S."""
        header = request.read_header(EndHalfMessagesRequestHeader)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        decision = Decision(header.producer_group, header.topics, header.commit_or_rollback, HalfRanges(request.body))
        try:
            check_fits(decision)
        except IllegalMessage as e:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
        return self._long_requests.run(connection, request, self._decide(connection, request, decision))

    def check_ready(self) -> None:
        """Raises RequestRefused while the decisions from before the start have not been read."""
        if not self._is_ready:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the broker is starting: it reads the ended transactions")

    def _decide(self, connection: Connection, request: RemotingCommand, decision: Decision) -> Steps:
        while not self._is_ready:
            if not self._is_master:
                raise slave_refusal()
            if self._check.catch_up():
                yield
            else:
                self.found()
        if decision.id not in self._remembered:
            yield from self._search(decision)
        if decision.id not in self._remembered:
            yield from self._verify(decision)
            yield from self._verify_alone(decision)
        return self._write(decision, connection, request)

    def _search(self, decision: Decision) -> Generator[None, None, None]:
        """Searches the op queue for an earlier decision about the same ranges and puts it into the cache.

        A client repeats a request if the response was lost or the broker was restarted.
        """
        decision.ranges.check(0)
        for record in written_decisions(self._store, decision):
            if record is None:
                yield
            elif (before := Decision.read(record)) is not None:
                self._remember(before)
                return

    def _verify(self, decision: Decision) -> Generator[None, None, None]:
        """Raises RequestRefused or BodyError unless each range begins and ends with half messages of the group."""
        decision.left, topics = 0, frozenset(decision.topics.split(","))
        for index in range(len(decision.ranges)):
            found = decision.ranges.check(index)
            first = self._half_message(found.half_offset)
            if first.physical_offset != found.physical_offset:
                raise _refused(found, "the first one isn't at this place of the log")
            for record in (first, self._half_message(found.end - 1)):
                self._check_one(record, found, decision, topics)
            decision.left += found.number
            if not (index + 1) % _STEP:
                yield

    def _verify_alone(self, decision: Decision) -> Generator[None, None, None]:
        """Raises RequestRefused if another open decision contains one of the half messages."""
        decisions, seen = self._check.decisions.open, -1
        # The loop includes decisions that are written while it runs.
        while others := [other for op_offset, other in decisions.items() if op_offset > seen]:
            seen = others[-1].op_offset
            for other in others:
                if other.id == decision.id:
                    return
                for index, found in enumerate(decision.ranges):
                    if other.ranges.overlap(found.half_offset, found.end):
                        raise RequestRefused(
                            ResponseCode.ILLEGAL_OPERATION,
                            f"of half messages {found.half_offset} to {found.end - 1} some are being "
                            f"{name_of_verdict(other.verdict)} with others",
                        )
                    if not (index + 1) % _STEP:
                        yield
                yield

    def _half_message(self, half_offset: int) -> Record:
        unit = half_queue(self._store).unit(half_offset)
        try:
            if unit is not None:
                record = self._store.read_record(unit[0])
                if (record.queue_offset, record.topic) == (half_offset, _HALF_TOPIC):
                    return record
        except GantryError as e:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"half message {half_offset} can't be read: {e}") from e
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no half message {half_offset}, or no longer")

    @staticmethod
    def _check_one(record: Record, found: HalfRange, decision: Decision, topics: frozenset[str]) -> None:
        fields = decode_properties(record.properties)
        target = destination(fields)
        if fields.get(names.PRODUCER_GROUP) != decision.group:
            raise _refused(found, "they are of another producer group")
        if target is None or target[0] not in topics:
            raise _refused(found, f"they are not for {decision.topics[:200]}")
        immunity_s = fields.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        if decision.verdict == TRANSACTION_COMMIT and GANTRY_HALF in fields and immunity_s.isdecimal():
            age_ms = now_ms() - min(record.born_timestamp, record.store_timestamp)
            if age_ms > int(immunity_s) * 1000 + GRACE_MS:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"half message {record.queue_offset} is {age_ms} ms old, and {immunity_s} s were allowed: "
                    "nothing is committed",
                )

    def _write(self, decision: Decision, connection: Connection, request: RemotingCommand) -> Reply:
        if decision.id not in self._remembered:
            if decision.verdict == TRANSACTION_COMMIT:
                self._pending_responses.check()
            ranges = len(decision.ranges) + sum(
                len(progress.decision.ranges) for progress in self._executor.open.values()
            )
            if len(self._executor.open) >= MOST_OPEN or ranges > MOST_OPEN_RANGES:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while: transactions end"
                )
            try:
                # Op messages about single half messages must precede the decision: the executor reads no later ones.
                self._check.write_ops()
                decision.write(self._appender)
            except StoreBusy:
                self._preallocation_waits.hold(connection, request, self.end)
                return None
            self._check.decision_written(decision)
            self._executor.begin(decision)
            self._remember(decision)
        op_offset, verdict = self._remembered[decision.id]
        if verdict != decision.verdict:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, f"the transaction is {name_of_verdict(verdict)} already"
            )
        connection.respond_with(request, self._when_done(self._executor.open.get(op_offset)))
        return None

    async def _when_done(self, progress: DecisionProgress | None) -> Reply:
        left = 0
        if progress is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await progress.done.wait()
            left = progress.decision.left if not progress.done.is_set() else 0
        if not left and self._pending_responses.is_used:
            await self._pending_responses.until_safe(self._store.max_physical_offset)
        return RemotingCommand.response(header=EndHalfMessagesResponseHeader(left=left))

    def _remember(self, decision: Decision) -> None:
        self._remembered[decision.id] = decision.op_offset, decision.verdict
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)


def _refused(found: HalfRange, why: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"half messages {found.half_offset} to {found.end - 1} can't be ended: {why}"
    )
