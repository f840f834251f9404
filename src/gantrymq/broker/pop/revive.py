"""Brings back popped messages that nobody acknowledged in time (`PopReviveService`).

Each queue of the revive log is read in order, see `revive_queue`. When a checkpoint's time has come, the messages that
are left of it are stored again in the group's pop retry topic, with one more attempt to their name. After as many of
them as the group has (`retryMaxTimes`) they go to its dead-letter topic: Java leaves that to its clients, some of which
drop them.

The offset of CID_RMQ_SYS_REVIVE_GROUP is, as in Java, that of the last record that is done with.
"""

from __future__ import annotations

from collections import OrderedDict

from gantrymq.broker.appender import Appender, is_passing
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.pop.revive_log import CHECKPOINT_LEAD_MS, ReviveLog
from gantrymq.broker.pop.revive_queue import ReviveQueue, WaitingPop
from gantrymq.broker.queue_reader import QueueReader
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
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
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, retry_topic
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: The queues of a pop retry topic (`PopAckConstants.retryQueueNum`).
RETRY_QUEUE_NUMS = 1

#: So long the loop is held at most before others get their turn, s, and records that are read between two looks at it.
_TURN_S = 0.005
_BATCH = 32

_CHECKPOINT, _ACKS = CHECKPOINT_TAG.encode(), (ACK_TAG.encode(), BATCH_ACK_TAG.encode())
#: So many acknowledgements of its master's pops a slave that stands in keeps in memory; 30 MB at most.
_MOST_ACKS = 100_000
#: What a message can do without where its properties have no room for more.
_ABOUT_POPS = (names.FIRST_POP_TIME, names.ORIGIN_GROUP, names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC)


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
        self._reader = QueueReader(appender.store, "popped messages")
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._retry = retry
        self._config = config
        self._queues: list[ReviveQueue] = []
        #: What `bring_back_now` and `bring_back` are at.
        self._at_once: dict[PopKey, WaitingPop] = {}
        #: What was acknowledged at a slave that stands in, of pops whose checkpoints it may read later.
        self._acked: OrderedDict[PopKey, set[int]] = OrderedDict()
        #: The queue whose turn it is.
        self._next = 0
        #: Of which topic and group was said that it is gone.
        self._gone = ("", "")

    @property
    def skipped(self) -> int:
        """Records and messages that were lost since the start, since they can't be read or stored again."""
        return self._reader.skipped

    def start(self) -> None:
        """Goes on where the group's offsets say."""
        now_ms = clock.now_ms()
        # A broker may be master more than once.
        self._queues.clear()
        self._at_once.clear()
        self._acked.clear()
        self._next = 0
        for queue_id in range(self._log.queue_nums):
            done = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
            # A power failure may have taken the log's end, whose offsets come again.
            end = self._store.queue(self._log.topic, queue_id).max_offset
            self._queues.append(ReviveQueue(0 if done is None else min(done + 1, end), now_ms))

    def turn(self) -> bool:
        """Works for some milliseconds: brings back what is due, reads what is new; whether there is more.

        To be called once a second, or soon. Raises GantryError or OSError when the store fails or takes nothing: then
        the next turn goes on where this one failed, but with another queue first.
        """
        end = monotonic() + _TURN_S
        idle = 0
        while idle < len(self._queues):
            queue_id, self._next = self._next, (self._next + 1) % len(self._queues)
            idle = 0 if self._step(queue_id) else idle + 1
            if monotonic() >= end:
                return True
        return False

    def lags(self) -> list[int]:
        """By queue, how many records aren't read yet."""
        sources = [self._store.find_queue(self._log.topic, queue_id) for queue_id in range(len(self._queues))]
        return [
            0 if source is None else source.max_offset - queue.next_offset
            for source, queue in zip(sources, self._queues, strict=True)
        ]

    def _step(self, queue_id: int) -> bool:
        """Brings back one message or reads a few records; False when there is neither."""
        queue = self._queues[queue_id]
        waiting = queue.due(clock.now_ms())
        if waiting is not None:
            if not self._revive(queue, waiting):
                return False
        else:
            source = self._store.find_queue(self._log.topic, queue_id)
            if source is None or source.max_offset == queue.read_offset:
                return False
            self._read(queue, source)
        committed = queue.committed
        if committed >= 0 and committed != self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id):
            self._offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, committed)
        return True

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, queue: ReviveQueue, source: ConsumeQueue) -> None:
        now_ms = clock.now_ms()
        wants_checkpoints = queue.wants_checkpoints
        for next_offset, record in self._reader.records(source, queue.read_offset, _BATCH):
            deliver_ms = 0
            if record is not None:
                try:
                    self._take(queue, record)
                except BodyError as e:
                    self._reader.skip(source, record.queue_offset, record.physical_offset, e)
                deliver_ms = _deliver_time(record)
            queue.read_to(next_offset, deliver_ms, now_ms)
            if queue.wants_checkpoints != wants_checkpoints:
                # It is read from another place now.
                return

    def _take(self, queue: ReviveQueue, record: Record) -> None:
        """Takes one record in. Raises BodyError."""
        tag = find_property(record.properties, b"TAGS")
        if tag in _ACKS:
            ack = decode_json(record.body, Ack)
            if len(ack.offsets) > MAX_MESSAGES:
                raise BodyError(f"it acknowledges {len(ack.offsets)} messages: at most {MAX_MESSAGES} are popped")
            # Batches that Java's buffer writes have no broker name.
            ack.broker_name = ack.broker_name or self._config.broker_name
            queue.take_ack(ack)
        elif tag == _CHECKPOINT and queue.wants_checkpoints:
            queue.take_checkpoint(_checkpoint(record), record.queue_offset, record.store_timestamp)

    # -- bringing back ------------------------------------------------------------------------------------------

    def _revive(self, queue: ReviveQueue, waiting: WaitingPop) -> bool:
        """Stores one of a checkpoint's unacknowledged messages again, or is done with it.

        False when a later turn has to do it: the topic where it is to come back isn't on the disk yet.
        """
        left = waiting.next_unacked()
        if left is None:
            queue.done(waiting)
            return True
        return self._deal_with(waiting, left)

    def bring_back_now(self, note: Record) -> None:
        """Brings back what a checkpoint has that is due for the revive log, where a slave can't write it.

        What its master wrote down as acknowledged later than in it comes back, too; such notes are due after it, and
        done with. Raises as `bring_back`; BodyError for a damaged one.
        """
        if find_property(note.properties, b"TAGS") == _CHECKPOINT:
            self.bring_back(_checkpoint(note))

    def bring_back(self, checkpoint: Checkpoint) -> None:
        """Brings back what isn't acknowledged of it, at a slave that stands in for its master.

        Raises as an append does until all is stored elsewhere, to be called again then.
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
        """A slave that stands in for its master was told so of a pop of the master. It can't be written down."""
        for queue in self._queues:
            queue.take_ack(ack)
        self._acked.setdefault(ack.key, set()).update(ack.offsets or [ack.offset])
        self._acked.move_to_end(ack.key)
        if len(self._acked) > _MOST_ACKS:
            # Its message comes once more.
            self._acked.popitem(last=False)

    def _deal_with(self, waiting: WaitingPop, left: tuple[int, int]) -> bool:
        """As `_revive`, for one message that is left."""
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
            # All of it.
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
        """False when it isn't possible yet. Raises GantryError or OSError; see `is_passing`."""
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
            queue = self._retry_queue(checkpoint, topic)
        if not self._topics.is_written(queue.topic):
            return False
        properties = encode_fitting(fields, self._appender.max_properties_length, _ABOUT_POPS, record.properties)
        code = tags_code(fields.get(names.TAGS, "").encode())
        self._appender.append_again(record, queue, properties, code, attempts)
        return True

    def _retry_queue(self, checkpoint: Checkpoint, topic: str) -> ConsumeQueue:
        """Where messages of a checkpoint come back; a new topic if need be."""
        group, target = checkpoint.group, checkpoint.topic
        if not target.startswith(RETRY_TOPIC_PREFIX):
            target = pop_retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)
        try:
            queue = self._store.queue(target, 0)
        except StoreError as e:
            raise IllegalMessage(str(e)) from e
        if self._topics.get(target) is None:
            self._topics.create_if_absent(target, RETRY_QUEUE_NUMS)
            if self._offsets.query(group, target, 0) is None:
                self._offsets.commit(group, target, 0, 0)
        return queue


def _checkpoint(record: Record) -> Checkpoint:
    """Raises BodyError."""
    checkpoint = decode_json(record.body, Checkpoint)
    if max(checkpoint.count, len(checkpoint.diffs)) > MAX_MESSAGES:
        raise BodyError(f"a checkpoint of {checkpoint.count} messages: at most {MAX_MESSAGES} are popped")
    return checkpoint


def _deliver_time(record: Record) -> int:
    """When a record of the log was to be delivered, ms."""
    deliver_ms = find_property(record.properties, b"TIMER_DELIVER_MS") or b""
    # None gets here much before its time, whatever it says.
    latest_ms = record.store_timestamp + CHECKPOINT_LEAD_MS
    is_number = deliver_ms.isdigit() and len(deliver_ms) < 20
    return min(int(deliver_ms), latest_ms) if is_number else record.store_timestamp
