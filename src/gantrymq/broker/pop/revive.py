"""Redelivers popped messages that were not acknowledged in time (`PopReviveService`).

Each queue of the revive log is read in order (`revive_queue`). When the time of a checkpoint has come, its
unacknowledged messages are stored again in the pop retry topic of the group, with the next retry count. After
`retryMaxTimes` attempts, a message goes to the dead-letter topic of the group. In Java, the client has to do this, and
some clients drop the message.

As in Java, the committed offset of CID_RMQ_SYS_REVIVE_GROUP is the offset of the last completed record.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec.structs

from gantrymq.broker.append import Appender, is_passing
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.pop.revive_log import CHECKPOINT_LEAD_MS, ReviveLog
from gantrymq.broker.pop.revive_queue import ReviveQueue, WaitingPop
from gantrymq.broker.queue_reader import QueueReader
from gantrymq.broker.send import RetryTopics
from gantrymq.errors import BodyError, IllegalMessage, StoreBusy, StoreError
from gantrymq.logs import peer_log
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
from gantrymq.protocol.properties import decode_properties, encode_fitting, find_property
from gantrymq.protocol.receipt_handle import normal_topic, pop_retry_topic
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, REVIVE_GROUP, retry_topic
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Number of queues of a pop retry topic (`PopAckConstants.retryQueueNum`).
RETRY_QUEUE_NUMS = 1

#: Longest time slice in one event-loop iteration, in seconds.
_SLICE_S = 0.005
#: Number of records to read between two checks of the time.
_BATCH = 32

_CHECKPOINT, _ACKS = CHECKPOINT_TAG.encode(), (ACK_TAG.encode(), BATCH_ACK_TAG.encode())
#: Maximum number of the master's acknowledged pops that an acting master keeps in memory. They use at most 30 MB.
_MOST_ACKS = 100_000
#: Properties that are omitted if all properties together become too long.
_ABOUT_POPS = (names.FIRST_POP_TIME, names.ORIGIN_GROUP, names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC)


class PopRevive:
    """Reads the revive log of one broker and redelivers the unacknowledged messages."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        revive_log: ReviveLog,
        appender: Appender,
        retry: RetryTopics,
    ) -> None:
        self._log = revive_log
        self._appender = appender
        self._store = appender.store
        self._reader = QueueReader(appender.store, "popped messages")
        self._topics = context.topics
        self._stats = context.stats
        self._groups = context.groups
        self._offsets = context.offsets
        self._retry = retry
        self._config = context.config
        self.queues: list[ReviveQueue] = []
        #: Pops that `revive_now` and `revive` have started to redeliver.
        self._at_once: dict[PopKey, WaitingPop] = {}
        #: Acknowledgements on an acting master, for pops whose checkpoints it may read later.
        self._acked: OrderedDict[PopKey, set[int]] = OrderedDict()
        #: Index of the next queue to process.
        self._next = 0
        #: (topic, group) of the last warning about a deleted topic or group, to avoid repeated warnings.
        self._gone = ("", "")

    @property
    def skipped(self) -> int:
        """The number of records and messages since the start that could not be read or stored again."""
        return self._reader.skipped

    def start(self) -> None:
        """Starts to read each queue after the committed offset of REVIVE_GROUP."""
        self.stop()
        for queue_id in range(self._log.queue_nums):
            done = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
            # A power failure can remove the end of the log. Its offsets are then assigned to new records.
            end = self._store.queue(self._log.topic, queue_id).max_offset
            self.queues.append(ReviveQueue(0 if done is None else min(done + 1, end)))

    def stop(self) -> None:
        """Drops the progress, because a broker can become master more than once."""
        self.queues.clear()
        self._at_once.clear()
        self._acked.clear()
        self._next = 0

    def turn(self) -> bool:
        """Works for one time slice: redelivers due messages and reads new records. Returns True if more is left.

        If so, the caller continues at once, otherwise after a second or at `next_due_ms`. Raises GantryError or OSError
        if the store fails or rejects messages. The next call then continues with another queue.
        """
        end = monotonic() + _SLICE_S
        idle = 0
        while idle < len(self.queues):
            queue_id, self._next = self._next, (self._next + 1) % len(self.queues)
            idle = 0 if self.step(queue_id) else idle + 1
            if monotonic() >= end:
                return True
        return False

    def lags(self) -> list[int]:
        """Returns the lag of each queue: its number of unread records. [] if this broker does not read the queues."""
        sources = [self._store.find_queue(self._log.topic, queue_id) for queue_id in range(len(self.queues))]
        return [
            0 if source is None else source.max_offset - queue.next_offset
            for source, queue in zip(sources, self.queues, strict=True)
        ]

    def latencies_ms(self) -> list[int]:
        """Returns the age of each queue's oldest unread record, in ms (0: all read); [] if this broker reads none."""
        now_ms = clock.now_ms()
        latencies = []
        for queue_id, queue in enumerate(self.queues):
            source = self._store.find_queue(self._log.topic, queue_id)
            is_behind = source is not None and queue.next_offset < source.max_offset
            stored_ms = self._store.store_time(source, queue.next_offset) if source is not None and is_behind else 0
            latencies.append(max(now_ms - stored_ms, 0) if stored_ms > 0 else 0)
        return latencies

    def next_due_ms(self) -> int | None:
        """Returns the time at which the next checkpoint is due if the timer is not late; None if none waits."""
        return min((due_ms for queue in self.queues if (due_ms := queue.next_due_ms) is not None), default=None)

    def step(self, queue_id: int) -> bool:
        """Redelivers one message or reads some records of a queue. Returns False if neither is possible."""
        queue = self.queues[queue_id]
        source = self._store.find_queue(self._log.topic, queue_id)
        is_read = source is None or source.max_offset == queue.read_offset
        waiting = queue.due(clock.now_ms(), is_complete=is_read and len(queue) > 0 and self._log.is_up_to_date())
        if waiting is not None:
            if not self._revive(queue, waiting):
                return False
        elif source is None or is_read:
            return False
        else:
            self._read(queue, source)
        committed = queue.committed
        if committed >= 0 and committed != self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id):
            self._offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, committed)
        return True

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, queue: ReviveQueue, source: ConsumeQueue) -> None:
        wants_checkpoints = queue.wants_checkpoints
        for next_offset, record in self._reader.records(source, queue.read_offset, _BATCH):
            deliver_ms = 0
            if record is not None:
                try:
                    self._take(queue, record, source.queue_id)
                except BodyError as e:
                    self._reader.skip(source, record.queue_offset, record.physical_offset, e)
                deliver_ms = _deliver_time(record)
            queue.read_to(next_offset, deliver_ms)
            if queue.wants_checkpoints != wants_checkpoints:
                # The following records are read from another offset.
                return

    def _take(self, queue: ReviveQueue, record: Record, queue_id: int) -> None:
        """Adds the checkpoint or acknowledgement of one record. Raises BodyError."""
        tag = find_property(record.properties, b"TAGS")
        if tag in _ACKS:
            ack = decode_json(record.body, Ack)
            if len(ack.offsets) > MAX_MESSAGES:
                raise BodyError(f"it acknowledges {len(ack.offsets)} messages: at most {MAX_MESSAGES} are popped")
            # Batch acknowledgements from Java's buffer contain no broker name.
            ack.broker_name = ack.broker_name or self._config.broker_name
            queue.take_ack(ack)
            self._log.counts.add_read(ack, queue_id)
        elif tag == _CHECKPOINT and queue.wants_checkpoints:
            checkpoint = _checkpoint(record)
            queue.take_checkpoint(checkpoint, record.queue_offset, record.store_timestamp)
            self._log.counts.add_read(checkpoint, queue_id)

    # -- redelivery ---------------------------------------------------------------------------------------------

    def _revive(self, queue: ReviveQueue, waiting: WaitingPop) -> bool:
        """Stores one unacknowledged message of a checkpoint again. If no message is left, completes the checkpoint.

        Returns False if the target topic is not on disk yet. A later call tries again.
        """
        left = waiting.next_unacked()
        if left is None:
            queue.done(waiting)
            return True
        return self._deal_with(waiting, left)

    def revive_now(self, note: Record) -> None:
        """Redelivers the messages of a checkpoint record that is due, because an acting master can't use the log.

        Acknowledgements that the master wrote as separate records are ignored, because they are due later. Their
        messages are redelivered as well. Raises the errors of `revive`, or BodyError for a damaged record.
        """
        if find_property(note.properties, b"TAGS") == _CHECKPOINT:
            self.revive(_checkpoint(note))

    def revive(self, checkpoint: Checkpoint) -> None:
        """Redelivers the unacknowledged messages of a checkpoint, on an acting master.

        Raises the errors of an append until other brokers have stored all messages. The caller then repeats it.
        """
        key = checkpoint.key
        waiting = self._at_once.setdefault(key, WaitingPop(checkpoint, 0, 0, 0))
        waiting.acked |= checkpoint.bit_map
        places = checkpoint.offsets
        for offset in self._acked.get(key, ()):
            if offset in places:
                waiting.acked |= 1 << places.index(offset)
        while (left := waiting.next_unacked()) is not None:
            if not self._deal_with(waiting, left):
                raise StoreBusy("the topic where a message is to come back isn't on the disk yet")
        del self._at_once[key]
        self._acked.pop(key, None)

    def acknowledged(self, ack: Ack) -> None:
        """On an acting master, records the acknowledgement of one of the master's pops, in memory only."""
        for queue in self.queues:
            queue.take_ack(ack)
        self._acked.setdefault(ack.key, set()).update(ack.offsets or [ack.offset])
        self._acked.move_to_end(ack.key)
        if len(self._acked) > _MOST_ACKS:
            # As a consequence, the broker redelivers messages of the dropped pop although they are acknowledged.
            self._acked.popitem(last=False)

    def _deal_with(self, waiting: WaitingPop, left: tuple[int, int]) -> bool:
        """Stores one message of a checkpoint again. `left` is its (index in the checkpoint, queue offset).

        Skips messages that are unreadable, and all messages if the group was reset or the topic or group was deleted.
        Returns False if the target topic is not on disk yet.
        """
        checkpoint = waiting.checkpoint
        topic = normal_topic(checkpoint.topic, checkpoint.group)
        place, offset = left
        if self._offsets.is_old_pop(checkpoint.group, checkpoint.topic, checkpoint.queue_id, checkpoint.log_end):
            # Drop all messages: the group was reset, or the topic was deleted.
            waiting.acked = -1
        elif self._topics.get(topic) is None or self._groups.find(checkpoint.group) is None:
            if self._gone != (topic, checkpoint.group):
                self._gone = topic, checkpoint.group
                log.warning("topic %r or group %r is gone: its messages don't come back", topic, checkpoint.group)
            # Drop all messages.
            waiting.acked = -1
        else:
            source = self._store.find_queue(checkpoint.topic, checkpoint.queue_id)
            record = None if source is None else next(self._reader.records(source, offset, 1), (0, None))[1]
            if source is not None and record is not None:
                try:
                    if not self._store_again(checkpoint, record, topic):
                        return False
                except Exception as e:
                    if is_passing(e):
                        raise
                    self._reader.skip(source, offset, record.physical_offset, e)
            waiting.acked |= 1 << place
        return True

    def _store_again(self, checkpoint: Checkpoint, record: Record, topic: str) -> bool:
        """Stores a message in the retry topic or the dead-letter topic of the group.

        Returns False if that topic is not on disk yet. Raises GantryError or OSError; see `is_passing`.
        """
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
            queue = self._retry_queue(checkpoint, topic, record.queue_id)
        if not self._topics.is_written(queue.topic):
            return False
        properties = encode_fitting(fields, self._appender.max_properties_length, _ABOUT_POPS, record.properties)
        code = tags_code(fields.get(names.TAGS, "").encode())
        self._appender.append_again(record, queue, properties, code, attempts)
        self._log.counts.add_redelivered(checkpoint)
        if queue.topic.startswith(DLQ_TOPIC_PREFIX):
            self._stats.dead_letter(topic, group)
        return True

    def _retry_queue(self, checkpoint: Checkpoint, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the retry queue for a message of a checkpoint. Creates the topic if necessary.

        With `useSeparateRetryQueue`, the queue has the id of the message's queue. The retry topic then has as many
        queues as `topic`.
        """
        count = RETRY_QUEUE_NUMS
        if self._config.use_separate_retry_queue and (config := self._topics.get(topic)) is not None:
            count = max(config.write_queue_nums, 1)
        queue_id = queue_id if queue_id < count else 0
        group, target = checkpoint.group, checkpoint.topic
        if not target.startswith(RETRY_TOPIC_PREFIX):
            target = pop_retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)
        try:
            queue = self._store.queue(target, queue_id)
        except StoreError as e:
            raise IllegalMessage(str(e)) from e
        retry_config = self._topics.get(target)
        if retry_config is None:
            self._topics.create_if_absent(target, count)
        elif self._config.use_separate_retry_queue and retry_config.write_queue_nums < count:
            # Queues are added but never removed, because consumers still read the messages in them.
            read_count = max(retry_config.read_queue_nums, count)
            self._topics.put(msgspec.structs.replace(retry_config, read_queue_nums=read_count, write_queue_nums=count))
        else:
            return queue
        for id_ in range(count):
            if self._offsets.query(group, target, id_) is None:
                self._offsets.commit(group, target, id_, 0)
        return queue


def _checkpoint(record: Record) -> Checkpoint:
    """Decodes a checkpoint. Raises BodyError if it is damaged or has too many messages."""
    checkpoint = decode_json(record.body, Checkpoint)
    if max(checkpoint.count, len(checkpoint.diffs)) > MAX_MESSAGES:
        raise BodyError(f"a checkpoint of {checkpoint.count} messages: at most {MAX_MESSAGES} are popped")
    return checkpoint


def _deliver_time(record: Record) -> int:
    """Returns the time at which the timer should deliver a record of the log, in ms."""
    deliver_ms = find_property(record.properties, b"TIMER_DELIVER_MS") or b""
    # Limits the effect of a wrong property, because a record is stored only shortly before its delivery time.
    latest_ms = record.store_timestamp + CHECKPOINT_LEAD_MS
    is_number = deliver_ms.isdigit() and len(deliver_ms) < 20
    return min(int(deliver_ms), latest_ms) if is_number else record.store_timestamp
