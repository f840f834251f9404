"""Handles ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME for popped messages.

While the checkpoint of a message is in the `PopBuffer`, an acknowledgement sets a bit there. After that, an
acknowledgement becomes a record in the revive log. Sources: `AckMessageProcessor`, `ChangeInvisibleTimeProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pop.orderly import OrderlyPops, Outcome
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.revive_log import ReviveLog
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.bodies.pop import Ack, BatchAck, BatchAckBody, Checkpoint
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, encode_success
from gantrymq.protocol.fastjson import decode_request_json
from gantrymq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from gantrymq.protocol.receipt_handle import ORDERLY_REVIVE_QUEUE, ReceiptHandle, real_topic
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock

#: Number of words in a receipt handle that all messages of a pop from one queue share.
_WORDS_OF_POP = 7
#: The pop time of a receipt handle may be at most this far in the future, in ms. Each further change of an invisible
#: duration in the same millisecond adds 1 ms.
_AHEAD_MS = 1000


class PopAcks(Feature):
    """Handles the acknowledgements of one broker.

    `wake(topic, group, queue id)` is called when an orderly queue is unblocked or its unblock time changes.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        queues: PopQueues,
        buffer: PopBuffer,
        revive_log: ReviveLog,
        orderly: OrderlyPops,
        wake: Callable[[str, str, int], None],
    ) -> None:
        self._config = context.config
        self._offsets = context.offsets
        self._stats = context.stats
        self._groups = context.groups
        self._queues = queues
        self._buffer = buffer
        self._log = revive_log
        self._orderly = orderly
        self._wake = wake
        self._long_requests = context.long_requests
        #: The last handle, and the words that it shares with the handles of the other messages of its pop.
        self._last_words: str | None = None
        self._last_handle = ReceiptHandle(0, 0, 0, 0, "", "")

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
        }

    def ack(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles ACK_MESSAGE: acknowledges one message."""
        header = request.read_header(AckMessageRequestHeader)
        queue = self._queues.handed_out(header.topic, header.queue_id)
        # Here and below `log_min_offset`, because a message in flight may expire by the retention of its topic.
        if not queue.log_min_offset <= header.offset <= queue.max_offset:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
                f"store:{queue.log_min_offset}~{queue.max_offset}",
            )
        handle = self._handle(header.extra_info)
        topic, group, offset = header.topic, header.consumer_group, header.offset
        if handle.revive_queue_id == ORDERLY_REVIVE_QUEUE:
            self._ack_orderly(queue, group, offset, handle.pop_time)
        else:
            key = (topic, group, header.queue_id, handle.start_offset, handle.pop_time, handle.broker_name)
            if not self._buffer.ack(key, (offset,)):
                revive_time = handle.pop_time + handle.invisible_time
                self._log.put_ack(_ack_of(header, handle), handle.revive_queue_id, revive_time)
        self._count(topic, group, 1)
        return (encode_success(request),)

    def _handle(self, text: str) -> ReceiptHandle:
        """Parses a receipt handle. The result can have the queue offset of another message of the same pop."""
        # The handles of a pop from one queue differ in the eighth word only, and most are acknowledged one after the
        # other.
        words = text[: text.rfind(" ") + 1]
        if words != self._last_words or not text[len(words) :].isdigit():
            self._last_handle = ReceiptHandle.parse(text)
            self._last_words = words if words.count(" ") == _WORDS_OF_POP else None
        return self._last_handle

    def ack_batch(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles BATCH_ACK_MESSAGE: acknowledges messages of several pops, as many as possible."""
        body = decode_request_json(request.body, BatchAckBody) if request.body else BatchAckBody()
        if not body.acks:
            raise RequestRefused(ResponseCode.NO_MESSAGE, "the batch has no acknowledgement")
        return self._long_requests.run(connection, request, self._ack_all(body))

    def _ack_all(self, body: BatchAckBody) -> Steps:
        """Acknowledges all valid messages, then raises the first error of the other messages. The client may retry."""
        problem: GantryError | None = None
        for batch in body.acks:
            try:
                self._ack_some(batch, body.broker_name or self._config.broker_name)
            except GantryError as e:
                problem = problem or e
            yield
        if problem is not None:
            raise problem
        return RemotingCommand.response()

    def _ack_some(self, batch: BatchAck, broker_name: str) -> None:
        topic = real_topic(batch.topic, batch.group, batch.retry_flag)
        try:
            queue = self._queues.handed_out(topic, batch.queue_id)
        except RequestRefused:
            # The response is a success, as in Java, because the messages were deleted with their queue.
            return
        offsets = [offset for offset in batch.offsets() if queue.log_min_offset <= offset <= queue.max_offset]
        if batch.revive_queue_id == ORDERLY_REVIVE_QUEUE:
            for offset in offsets:
                self._ack_orderly(queue, batch.group, offset, batch.pop_time)
        elif offsets:
            ack = Ack(
                start_offset=batch.start_offset,
                group=batch.group,
                topic=topic,
                queue_id=batch.queue_id,
                pop_time=batch.pop_time,
                broker_name=broker_name,
                offsets=offsets,
            )
            self._ack(ack, batch.revive_queue_id, batch.pop_time + batch.invisible_time)
        self._count(topic, batch.group, len(offsets))

    def _count(self, topic: str, group: str, acknowledged: int) -> None:
        # A request can contain any group name. Only existing groups get statistics.
        if self._groups.find(group) is not None:
            self._stats.acknowledged(topic, group, acknowledged)

    def _ack(self, ack: Ack, revive_queue_id: int, revive_time: int) -> None:
        if not self._buffer.ack(ack.key, ack.offsets or [ack.offset]):
            self._log.put_ack(ack, revive_queue_id, revive_time)

    def _ack_orderly(self, queue: ConsumeQueue, group: str, offset: int, pop_time: int) -> None:
        committed = self._offsets.query(group, queue.topic, queue.queue_id)
        # An orderly pop commits an offset. If there is none, the topic was deleted after the pop.
        if committed is None or offset < committed:
            return
        outcome = self._orderly.ack(queue.topic, group, queue.queue_id, offset, pop_time)
        if outcome is Outcome.ILLEGAL:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{queue.topic}@{group}@{queue.queue_id}, old:{committed}, commit:{offset}, "
                f"{outcome.value}",
            )
        if isinstance(outcome, int):
            self._offsets.commit(group, queue.topic, queue.queue_id, outcome)
            self._wake(queue.topic, group, queue.queue_id)

    def change_invisible_time(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles CHANGE_MESSAGE_INVISIBLETIME: sets a new invisible duration from now and a new receipt handle."""
        header = request.read_header(ChangeInvisibleTimeRequestHeader)
        queue = self._queues.handed_out(header.topic, header.queue_id)
        if not queue.log_min_offset <= header.offset < queue.max_offset:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE, f"no message {header.offset} in {header.topic}-{header.queue_id}"
            )
        self._queues.check_invisible_time(header.invisible_time)
        handle = ReceiptHandle.parse(header.extra_info)
        now_ms = clock.now_ms()
        if handle.is_orderly:
            return self._change_orderly(header, handle, now_ms)
        # The pop time is part of a checkpoint's key. It must differ from the pop time of the old handle.
        pop_time = handle.pop_time + 1 if 0 <= handle.pop_time - now_ms < _AHEAD_MS else now_ms
        checkpoint = Checkpoint(
            start_offset=header.offset,
            pop_time=pop_time,
            invisible_time=header.invisible_time,
            count=1,
            queue_id=header.queue_id,
            topic=header.topic,
            group=header.consumer_group,
            diffs=[0],
            broker_name=handle.broker_name,
            suspend=bool(header.suspend),
            log_end=self._log.end,
        )
        ack = _ack_of(header, handle)
        if not self._buffer.keeps_all:
            self._log.put_checkpoint(checkpoint, handle.revive_queue_id)
            self._ack(ack, handle.revive_queue_id, handle.pop_time + handle.invisible_time)
        elif not self._buffer.prolong(ack.key, checkpoint, handle.revive_queue_id):
            # The pop belongs to the master. An acting master would keep the new time only in memory, and a crash would
            # lose the message.
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now: the master handed the message out, and is gone; it comes back at its time",
            )
        self._count(header.topic, header.consumer_group, 1)
        if self._groups.find(header.consumer_group) is not None:
            self._stats.checkpointed(header.topic, header.consumer_group)
        return _changed(pop_time, header.invisible_time, handle.revive_queue_id)

    def _change_orderly(self, header: ChangeInvisibleTimeRequestHeader, handle: ReceiptHandle, now_ms: int) -> Reply:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        committed = self._offsets.query(group, topic, queue_id)
        visible_at = now_ms + header.invisible_time
        if committed is None or header.offset >= committed:
            self._orderly.change_visible_at(topic, group, queue_id, header.offset, handle.pop_time, visible_at)
            self._wake(topic, group, queue_id)
        return _changed(handle.pop_time, visible_at - handle.pop_time, handle.revive_queue_id)


def _ack_of(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, handle: ReceiptHandle) -> Ack:
    return Ack(
        start_offset=handle.start_offset,
        group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        pop_time=handle.pop_time,
        offset=header.offset,
        broker_name=handle.broker_name,
    )


def _changed(pop_time: int, invisible_time: int, revive_queue_id: int) -> RemotingCommand:
    return RemotingCommand.response(
        header=ChangeInvisibleTimeResponseHeader(
            pop_time=pop_time, invisible_time=invisible_time, revive_qid=revive_queue_id
        )
    )
