"""Half messages of transactional writes: tasks store them, and the driver commits them or rolls them back.

GantryMQ's brokers accept batches of half messages. One request commits or rolls back many of them, all or none
(`protocol.half_ranges`). Brokers of Apache reject such batches as illegal messages. For these brokers, half messages
are sent, committed and rolled back one by one. During a transaction, a broker of Apache can replace a broker of
GantryMQ. Half messages that were sent in batches are then also committed or rolled back one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gantrymq.arrow.batch_bodies import BatchBody, Encoded
from gantrymq.arrow.client_settings import NewTopic
from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.concurrent_requests import run_all
from gantrymq.arrow.options import PRODUCER_GROUP
from gantrymq.arrow.row_sender import RowSender, rows_in_errors
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
from gantrymq.system.clock import now_ms

log = peer_log(__name__)


class HalfMessages(NamedTuple):
    """Half messages for a queue, contiguous in the half queue and in the commit log of the broker."""

    queue: MessageQueue
    half_range: HalfRange


class HalfSender(RowSender):
    """Sends the rows of a task as half messages.

    `halves` has the messages that were sent in batches, and `alone` the messages that were sent one by one.
    """

    def __init__(
        self, cluster: ClusterClient, partition: int, timeout_s: int, new_topic: NewTopic | None = None
    ) -> None:
        super().__init__(cluster, partition, new_topic)
        self.halves: list[HalfMessages] = []
        self.alone: list[HalfMessages] = []
        self._properties = encode_properties(
            {
                names.TRANSACTION_PREPARED: "true",
                names.PRODUCER_GROUP: PRODUCER_GROUP,
                # The time during which the broker doesn't check the transaction.
                names.CHECK_IMMUNITY_TIME_IN_SECONDS: str(timeout_s),
            }
        )
        #: Brokers that reject batches of half messages.
        self._others: set[str] = set()

    async def _send_request(self, queues: Sequence[MessageQueue], request: BatchBody) -> None:
        if queues[0].broker_name in self._others or not await self._send_batch(queues, request):
            # `run_all` returns the results in the order of the rows.
            self.alone += await run_all(self._send_half(queues, message) for message in decode_batch(request.body))

    async def _send_batch(self, queues: Sequence[MessageQueue], request: BatchBody) -> bool:
        """Sends a batch. Returns False if the broker rejects batches."""
        # A retry goes to the next broker, so brokers that reject batches are removed.
        candidates = [queue for queue in queues if queue.broker_name not in self._others]
        latest = candidates[0]

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
                **self._settings,
            )

        try:
            with rows_in_errors(decode_batch(request.body)):
                result = await self._cluster.send(candidates, command)
        except BrokerError as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # A broker can also reject a batch of one message because of its size.
            if request.messages > 1:
                log.info("broker %s rejects batches of half messages: sending them one by one", latest.broker_name)
                self._others.add(latest.broker_name)
            return False
        half_range = HalfRange(
            result.queue_offset, _physical_offset(result.queue, result.offset_msg_id), request.messages
        )
        self.halves.append(HalfMessages(result.queue, half_range))
        return True

    async def _send_half(self, queues: Sequence[MessageQueue], message: Encoded) -> HalfMessages:
        _, body, properties = message

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(
                PRODUCER_GROUP,
                queue,
                body,
                properties + self._properties,
                now_ms(),
                sys_flag=TRANSACTION_PREPARED,
                **self._settings,
            )

        async with self._alone:
            with rows_in_errors([message]):
                result = await self._cluster.send(queues, command)
        return HalfMessages(
            result.queue, HalfRange(result.queue_offset, _physical_offset(result.queue, result.offset_msg_id), 1)
        )


def _physical_offset(queue: MessageQueue, message_id: str | None) -> int:
    if not message_id:
        raise ClientError(
            f"broker {queue.broker_name} sends no message id for a half message: transactions with it are impossible"
        )
    return decode_offset_message_id(message_id)[1]


async def end_transaction(
    cluster: ClusterClient, halves: Sequence[HalfMessages], alone: Sequence[HalfMessages], verdict: int
) -> None:
    """Commits or rolls back half messages, on all brokers concurrently, and in order for each queue.

    If a broker fails, the function completes on the other brokers, then raises the first error, and logs further
    errors. `verdict` is TRANSACTION_COMMIT or TRANSACTION_ROLLBACK of `protocol.sys_flag`.
    """
    for topic in {each.queue.topic for each in (*halves, *alone)}:
        # Only called to cache the addresses of the brokers.
        await cluster.write_queues(topic)
    by_broker: dict[str, list[HalfMessages]] = {}
    for each in halves:
        by_broker.setdefault(each.queue.broker_name, []).append(each)
    by_queue: dict[MessageQueue, list[HalfMessages]] = {}
    for each in alone:
        by_queue.setdefault(each.queue, []).append(each)
    outcomes = await asyncio.gather(
        *(_end_on(cluster, sorted(of_broker, key=_half_range), verdict) for of_broker in by_broker.values()),
        *(_end_one_by_one(cluster, of_queue, verdict) for of_queue in by_queue.values()),
        return_exceptions=True,
    )
    failures = [outcome for outcome in outcomes if outcome is not None]
    for failure in failures[1:]:
        log.warning("ending the transaction has failed on another broker, too: %s", failure)
    if failures:
        raise failures[0]


def _half_range(halves: HalfMessages) -> HalfRange:
    return halves.half_range


async def _end_on(cluster: ClusterClient, halves: Sequence[HalfMessages], verdict: int) -> None:
    """Commits or rolls back the half messages on one broker."""
    for start in range(0, len(halves), MAX_RANGES):
        some = halves[start : start + MAX_RANGES]
        header = EndHalfMessagesRequestHeader(
            producer_group=PRODUCER_GROUP,
            topics=",".join(sorted({each.queue.topic for each in some})),
            commit_or_rollback=verdict,
        )
        body = encode_half_ranges(map(_half_range, some))
        try:
            left = 1
            while left:
                request = RemotingCommand.request(RequestCode.END_HALF_MESSAGES, header, body)
                response = await cluster.request_master(some[0].queue, request)
                left = response.read_header(EndHalfMessagesResponseHeader).left
        except BrokerError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            await _end_one_by_one(cluster, some, verdict)


async def _end_one_by_one(cluster: ClusterClient, halves: Sequence[HalfMessages], verdict: int) -> None:
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
                    # Without this flag, a broker rejects a commit after transactionTimeoutMs, so a transaction could
                    # be committed in part. The driver has already checked the time.
                    from_transaction_check=True,
                    bname=queue.broker_name,
                ),
            )
            if offset + 1 < half_offset + count:
                # The next half message follows directly in the commit log.
                view = RemotingCommand.request(
                    RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=physical_offset)
                )
                physical_offset += decode_record((await cluster.request_master(queue, view)).body).size
