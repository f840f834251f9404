"""Brings back popped messages that nobody acknowledged in time (`PopReviveService`).

Each queue of the revive log is read once. What it says is kept in a `ReviveQueue` until a checkpoint's time has come
and the log is past it, so that its acknowledgements have been read; then the messages left are stored again in the
group's pop retry topic, with one more attempt to their name. After as many attempts as the group has (`retryMaxTimes`)
they go to its dead-letter topic: Java leaves that to its clients, some of which drop them.

The offset of CID_RMQ_SYS_REVIVE_GROUP is, as in Java, that of the last record that is done with.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gantrymq import clock
from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.pop.revive_log import CHECKPOINT_LEAD_MS, ReviveLog
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import BodyError, GantryError, RecordError, StoreError
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.pop import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    MAX_MESSAGES,
    Ack,
    Checkpoint,
    PopKey,
)
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties, encode_properties
from gantrymq.protocol.receipt_handle import normal_topic, pop_retry_topic
from gantrymq.protocol.record import Record, decode_records
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, retry_topic
from gantrymq.store.get_result import GetStatus

log = logging.getLogger(__name__)

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: The queues of a pop retry topic (`PopAckConstants.retryQueueNum`).
RETRY_QUEUE_NUMS = 1

#: The log must be past a checkpoint's time by so much: its acknowledgements are delivered at that time, to the second.
_ACK_GRACE_MS = 2000
#: A log that brought nothing for so long is past every time before.
_IDLE_MS = 3000
#: After a failure, ms.
_PAUSE_MS = 10_000
#: Records read and messages brought back before the loop gets its turn.
_BATCH = 256


@dataclass(slots=True)
class _Waiting:
    checkpoint: Checkpoint
    offset: int
    """Of its record in the revive log."""
    acked: int


@dataclass
class ReviveQueue:
    """One queue of the revive log, as far as it is read. Plain, told the time in ms."""

    next_offset: int
    now_ms: int
    _waiting: dict[PopKey, _Waiting] = field(default_factory=dict)
    _log_time: int = 0

    def take_checkpoint(self, checkpoint: Checkpoint, offset: int) -> None:
        waiting = _Waiting(checkpoint, offset, checkpoint.bit_map & 0xFFFFFFFF)
        self._waiting.setdefault(checkpoint.key, waiting)

    def take_ack(self, ack: Ack) -> None:
        """An acknowledgement of a checkpoint that isn't here came too late."""
        waiting = self._waiting.get(ack.key)
        if waiting is None:
            return
        places = waiting.checkpoint.offsets
        for offset in ack.offsets or [ack.offset]:
            if offset in places:
                waiting.acked |= 1 << places.index(offset)

    def read_to(self, next_offset: int, deliver_ms: int, now_ms: int) -> None:
        """All before `next_offset` is read; the last record was to be delivered at `deliver_ms`."""
        self.next_offset = next_offset
        self.now_ms = now_ms
        self._log_time = max(self._log_time, deliver_ms)

    def due(self, now_ms: int) -> _Waiting | None:
        """The checkpoint to bring back next, the oldest in the log, if its time has come."""
        if now_ms - self.now_ms >= _IDLE_MS:
            self._log_time = max(self._log_time, now_ms)
        first = next(iter(self._waiting.values()), None)
        if first is None or self._log_time - first.checkpoint.revive_time <= _ACK_GRACE_MS:
            return None
        return first

    def done(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.checkpoint.key]

    @property
    def committed(self) -> int:
        """The offset of the last record that is done with."""
        first = next(iter(self._waiting.values()), None)
        return (self.next_offset if first is None else first.offset) - 1


class PopRevive:
    """The reading side of one broker's revive log."""

    def __init__(
        self,
        revive_log: ReviveLog,
        appender: Appender,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        retry: RetryTopics,
        config: BrokerConfig,
    ) -> None:
        self._log = revive_log
        self._appender = appender
        self._store = appender.store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._retry = retry
        self._config = config
        self._queues: list[ReviveQueue] = []
        self._paused_until = 0

    def start(self) -> None:
        """Goes on where the group's offsets say."""
        now_ms = clock.now_ms()
        for queue_id in range(self._log.queue_nums):
            done = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
            # A power failure may have taken the log's end, whose offsets come again.
            end = self._store.queue(self._log.topic, queue_id).max_offset
            self._queues.append(ReviveQueue(0 if done is None else min(done + 1, end), now_ms))

    def turn(self) -> bool:
        """Reads what is new and brings back what is due; whether there is more. To be called once a second, or soon."""
        if clock.now_ms() < self._paused_until:
            return False
        more = False
        for queue_id in range(len(self._queues)):
            try:
                more = self._read(queue_id) or self._revive_due(queue_id) or more
            except GantryError as e:
                log.error("revive queue %d: going on in %d s: %s", queue_id, _PAUSE_MS // 1000, e)
                self._paused_until = clock.now_ms() + _PAUSE_MS
        return more

    def lags(self) -> list[int]:
        """By queue, how many records aren't read yet."""
        sources = [self._store.find_queue(self._log.topic, queue_id) for queue_id in range(len(self._queues))]
        return [
            0 if source is None else source.max_offset - queue.next_offset
            for source, queue in zip(sources, self._queues, strict=True)
        ]

    def _read(self, queue_id: int) -> bool:
        """Reads what is new; whether there is more."""
        queue = self._queues[queue_id]
        source = self._store.find_queue(self._log.topic, queue_id)
        if source is None or source.max_offset == queue.next_offset:
            return False
        found = self._store.get(source, queue.next_offset, _BATCH, 1 << 20)
        now_ms = clock.now_ms()
        deliver_ms = 0
        if found.status is GetStatus.FOUND:
            for buffer in found.buffers:
                for record in decode_records(buffer):
                    deliver_ms = max(deliver_ms, self._take(queue, record))
        queue.read_to(found.next_begin_offset, deliver_ms, now_ms)
        return found.next_begin_offset < source.max_offset

    def _take(self, queue: ReviveQueue, record: Record) -> int:
        """Takes one record in; when it was to be delivered, ms."""
        fields = decode_properties(record.properties)
        tag = fields.get(names.TAGS)
        try:
            if tag == CHECKPOINT_TAG:
                checkpoint = decode_json(record.body, Checkpoint)
                if max(checkpoint.count, len(checkpoint.diffs)) > MAX_MESSAGES:
                    raise BodyError(f"a checkpoint of {checkpoint.count} messages: at most {MAX_MESSAGES} are popped")
                queue.take_checkpoint(checkpoint, record.queue_offset)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = decode_json(record.body, Ack)
                # Batches that Java's buffer writes have no broker name.
                ack.broker_name = ack.broker_name or self._config.broker_name
                queue.take_ack(ack)
        except BodyError as e:
            log.error("record %d of revive queue %d is skipped: %s", record.queue_offset, record.queue_id, e)
        deliver_ms = fields.get(names.TIMER_DELIVER_MS, "")
        # No record gets here much before its time, whatever it says.
        latest_ms = record.store_timestamp + CHECKPOINT_LEAD_MS
        is_number = deliver_ms.isascii() and deliver_ms.isdigit() and len(deliver_ms) < 20
        return min(int(deliver_ms), latest_ms) if is_number else record.store_timestamp

    def _revive_due(self, queue_id: int) -> bool:
        """Brings back what is due; whether there is more."""
        queue = self._queues[queue_id]
        now_ms, revived = clock.now_ms(), 0
        while revived < _BATCH and (waiting := queue.due(now_ms)) is not None:
            revived += self._revive(waiting)
            queue.done(waiting)
        committed = queue.committed
        if committed >= 0 and committed != self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id):
            self._offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, committed)
        return revived >= _BATCH

    def _revive(self, waiting: _Waiting) -> int:
        """Stores a checkpoint's unacknowledged messages again; how many. Goes on where it failed the last time."""
        checkpoint = waiting.checkpoint
        topic = normal_topic(checkpoint.topic, checkpoint.group)
        if self._topics.get(topic) is None or self._groups.find(checkpoint.group) is None:
            log.warning("topic %s or group %s is gone: its messages don't come back", topic, checkpoint.group)
            return 0
        revived = 0
        for place, offset in enumerate(checkpoint.offsets):
            if not waiting.acked >> place & 1:
                record = self._find(checkpoint, offset)
                if record is not None:
                    self._store_again(checkpoint, record, topic)
                    revived += 1
                waiting.acked |= 1 << place
        return revived

    def _find(self, checkpoint: Checkpoint, offset: int) -> Record | None:
        """The message at a queue offset; None when it is no longer there."""
        queue = self._store.find_queue(checkpoint.topic, checkpoint.queue_id)
        unit = None if queue is None or offset < queue.min_offset else queue.unit(offset)
        if unit is None:
            return None
        try:
            return self._store.read_record(unit[0])
        except (RecordError, StoreError) as e:
            log.error("message %d of %s-%d can't come back: %s", offset, checkpoint.topic, checkpoint.queue_id, e)
            return None

    def _store_again(self, checkpoint: Checkpoint, record: Record, topic: str) -> None:
        group = checkpoint.group
        fields = decode_properties(record.properties)
        if record.reconsume_times == 0 or names.FIRST_POP_TIME not in fields:
            fields[names.FIRST_POP_TIME] = str(checkpoint.pop_time)
        fields[names.ORIGIN_GROUP] = group
        attempts = record.reconsume_times + (not checkpoint.suspend)
        queue = self._retry.dead_letter_queue_for(retry_topic(group), attempts, None)
        if queue is not None:
            fields.setdefault(names.RETRY_TOPIC, topic)
            message_id = encode_offset_message_id(record.store_host, record.physical_offset)
            fields.setdefault(names.ORIGIN_MESSAGE_ID, message_id)
        else:
            target = checkpoint.topic
            if not target.startswith(RETRY_TOPIC_PREFIX):
                target = pop_retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)
            if self._topics.get(target) is None:
                self._topics.create_if_absent(target, RETRY_QUEUE_NUMS)
                if self._offsets.query(group, target, 0) is None:
                    self._offsets.commit(group, target, 0, 0)
            queue = self._store.queue(target, 0)
        properties = encode_properties(fields)
        if len(properties) > MAX_PROPERTIES_LENGTH:
            properties = record.properties
        code = tags_code(fields.get(names.TAGS, "").encode())
        self._appender.append_again(record, queue, properties, code, attempts)
