"""Transactional writes: tasks store half messages, which nobody sees, and the driver ends them.

GantryMQ's brokers take half messages in batches, and end all that a driver names with one request, or none
(`protocol.half_ranges`). To Java's they are sent one by one, and ended one by one: those say of a batch that it is no
legal message. A broker that Java's has taken the place of meanwhile ends them one by one, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import BrokerError, ClientError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import MAX_RANGES, HalfRange, encode_half_ranges
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesRequestHeader, EndHalfMessagesResponseHeader
from gantrymq.protocol.headers.query import ViewMessageRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import decode_record
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.spark.batch_bodies import BatchBody, Encoded
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.of_each import all_of
from gantrymq.spark.options import PRODUCER_GROUP
from gantrymq.spark.sender import RowSender, naming_rows
from gantrymq.system.clock import now_ms

log = peer_log(__name__)


class Halves(NamedTuple):
    """Half messages for a queue, which stand one behind the other in the half queue and the log of its broker."""

    queue: MessageQueue
    place: HalfRange


class HalfSender(RowSender):
    """Sends the rows of a task as half messages. `halves` are what is stored, `alone` what was sent one by one."""

    def __init__(self, cluster: Cluster, partition: int, timeout_s: int) -> None:
        super().__init__(cluster, partition)
        self.halves: list[Halves] = []
        self.alone: list[Halves] = []
        self._properties = encode_properties(
            {
                names.TRANSACTION_PREPARED: "true",
                names.PRODUCER_GROUP: PRODUCER_GROUP,
                # Until then a broker doesn't ask what became of it.
                names.CHECK_IMMUNITY_TIME_IN_SECONDS: str(timeout_s),
            }
        )
        #: Brokers that take no batches of half messages.
        self._others: set[str] = set()

    async def _send_request(self, queues: Sequence[MessageQueue], request: BatchBody) -> None:
        if queues[0].broker_name in self._others or not await self._send_batch(queues, request):
            # In the order of their rows.
            self.alone += await all_of(self._send_half(queues, message) for message in decode_batch(request.body))

    async def _send_batch(self, queues: Sequence[MessageQueue], request: BatchBody) -> bool:
        """Whether the broker takes batches."""
        # One whose broker is away may be followed by one that takes none.
        asked = [queue for queue in queues if queue.broker_name not in self._others]
        latest = asked[0]

        def command(queue: MessageQueue) -> RemotingCommand:
            nonlocal latest
            latest = queue
            return send_command(
                PRODUCER_GROUP,
                queue,
                request.body,
                self._properties,
                now_ms(),
                sys_flag=TRANSACTION_PREPARED,
                batch=True,
            )

        try:
            with naming_rows(decode_batch(request.body)):
                result = await self._cluster.send(asked, command)
        except BrokerError as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # Of one message it may be said for its size alone.
            if request.messages > 1:
                log.info("broker %s takes no batches of half messages: one by one", latest.broker_name)
                self._others.add(latest.broker_name)
            return False
        place = HalfRange(result.queue_offset, _physical_offset(result.queue, result.offset_msg_id), request.messages)
        self.halves.append(Halves(result.queue, place))
        return True

    async def _send_half(self, queues: Sequence[MessageQueue], message: Encoded) -> Halves:
        _, body, properties = message

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(
                PRODUCER_GROUP, queue, body, properties + self._properties, now_ms(), sys_flag=TRANSACTION_PREPARED
            )

        async with self._alone:
            with naming_rows([message]):
                result = await self._cluster.send(queues, command)
        return Halves(
            result.queue, HalfRange(result.queue_offset, _physical_offset(result.queue, result.offset_msg_id), 1)
        )


def _physical_offset(queue: MessageQueue, message_id: str | None) -> int:
    if not message_id:
        raise ClientError(f"broker {queue.broker_name} doesn't say where it has put a message: no transaction")
    return decode_offset_message_id(message_id)[1]


async def end_all(cluster: Cluster, halves: Sequence[Halves], alone: Sequence[Halves], verdict: int) -> None:
    """Commits or rolls back, on all brokers at once; those of a queue in order.

    Raises what an end has raised when all others are over, too: nothing is left half ended for one broker's sake. What
    else was raised is in the log.
    `verdict` is TRANSACTION_COMMIT or TRANSACTION_ROLLBACK of `protocol.sys_flag`.
    """
    for topic in {each.queue.topic for each in (*halves, *alone)}:
        # So that the brokers' addresses are known.
        await cluster.write_queues(topic)
    by_broker: dict[str, list[Halves]] = {}
    for each in halves:
        by_broker.setdefault(each.queue.broker_name, []).append(each)
    by_queue: dict[MessageQueue, list[Halves]] = {}
    for each in alone:
        by_queue.setdefault(each.queue, []).append(each)
    outcomes = await asyncio.gather(
        *(_end_on(cluster, sorted(of_broker, key=_place), verdict) for of_broker in by_broker.values()),
        *(_end_one_by_one(cluster, of_queue, verdict) for of_queue in by_queue.values()),
        return_exceptions=True,
    )
    failures = [outcome for outcome in outcomes if outcome is not None]
    for failure in failures[1:]:
        log.warning("an end of the transaction has failed elsewhere, too: %s", failure)
    if failures:
        raise failures[0]


def _place(halves: Halves) -> HalfRange:
    return halves.place


async def _end_on(cluster: Cluster, halves: Sequence[Halves], verdict: int) -> None:
    """All of one broker."""
    for start in range(0, len(halves), MAX_RANGES):
        some = halves[start : start + MAX_RANGES]
        header = EndHalfMessagesRequestHeader(
            producer_group=PRODUCER_GROUP,
            topics=",".join(sorted({each.queue.topic for each in some})),
            commit_or_rollback=verdict,
        )
        body = encode_half_ranges(map(_place, some))
        try:
            left = 1
            while left:
                request = RemotingCommand.request(RequestCode.END_HALF_MESSAGES, header, body)
                answer = await cluster.ask_master(some[0].queue, request)
                left = answer.read_header(EndHalfMessagesResponseHeader).left
        except BrokerError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            await _end_one_by_one(cluster, some, verdict)


async def _end_one_by_one(cluster: Cluster, halves: Sequence[Halves], verdict: int) -> None:
    for queue, (half_offset, physical_offset, count) in halves:
        for offset in range(half_offset, half_offset + count):
            await cluster.end_transaction(
                queue,
                EndTransactionRequestHeader(
                    producer_group=PRODUCER_GROUP,
                    tran_state_table_offset=offset,
                    commit_log_offset=physical_offset,
                    commit_or_rollback=verdict,
                    msg_id="",
                    topic=queue.topic,
                    # Without it a broker refuses what comes later than transactionTimeoutMs, and the rest of a
                    # transaction whose first messages are visible would be missing. When a transaction may begin to end
                    # is the driver's decision.
                    from_transaction_check=True,
                    bname=queue.broker_name,
                ),
            )
            if offset + 1 < half_offset + count:
                # Behind it in the log stands the next one.
                view = RemotingCommand.request(
                    RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=physical_offset)
                )
                physical_offset += decode_record((await cluster.ask_master(queue, view)).body).size
