"""Writes checkpoints and acknowledgements to the revive log, rmq_sys_REVIVE_LOG_<cluster>, in Java's form.

They are timer messages: a checkpoint reaches its queue of the log a second before its messages are to come back, an
acknowledgement at that time. So the log is in order of time, and who reads it (`revive`) needs to wait but a moment
for the acknowledgements of a checkpoint. Sources: `PopMessageProcessor.buildCkMsg`, `AckMessageProcessor.appendAck`.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.appender import Appender
from gantrymq.errors import StoreBusy, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.pop import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, Ack, Checkpoint
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.topic_name import SYSTEM_TOPIC_PREFIX, TIMER_TOPIC
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock

log = peer_log(__name__)

#: So long before its messages come back a checkpoint is delivered, ms (`PopAckConstants.ackTimeInterval`).
CHECKPOINT_LEAD_MS = 1000

#: Where a message for a queue waits until its TIMER_DELIVER_MS: (queue, properties, tags code). Raises RequestRefused.
Delay = Callable[[ConsumeQueue, bytes, int], tuple[ConsumeQueue, bytes, int]]


def revive_topic(cluster: str) -> str:
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


class ReviveLog:
    """The writing side of one broker's revive log."""

    def __init__(self, appender: Appender, cluster: str, queue_nums: int, delay: Delay) -> None:
        self._appender = appender
        self._delay = delay
        self.topic = revive_topic(cluster)
        self.queue_nums = queue_nums
        self._has_room = False
        #: Who keeps acknowledgements while a slave stands in for its master, and can't write the log.
        self.keeper: Callable[[Ack], None] | None = None

    @property
    def end(self) -> int:
        """The end of the commit log, for checkpoints."""
        return self._appender.store.max_physical_offset

    def check_room(self) -> None:
        """To be called before a pop: what is noted of it is to be stored without a wait for a file.

        Raises StoreBusy while the first one of the timer's queue is being made; the others are there ahead of it.
        """
        if not self._has_room and self.keeper is None:
            try:
                self._appender.store.queue(TIMER_TOPIC, 0).make_room()
            except StoreBusy:
                raise
            except StoreError as e:
                # On a full disk notes stay in memory as long as they can.
                log.info("there is no room for notes about pops yet: %s", e)
                return
            self._has_room = True

    def put_checkpoint(self, checkpoint: Checkpoint, revive_queue_id: int) -> None:
        """Raises RequestRefused or StoreError when it can't be stored."""
        words = (checkpoint.topic, checkpoint.queue_id, checkpoint.start_offset, checkpoint.group)
        unique_key = "@".join(map(str, (*words, checkpoint.pop_time, checkpoint.broker_name, CHECKPOINT_TAG)))
        deliver_ms = checkpoint.revive_time - CHECKPOINT_LEAD_MS
        self._put(revive_queue_id, CHECKPOINT_TAG, encode_json(checkpoint), unique_key, deliver_ms)

    def put_ack(self, ack: Ack, revive_queue_id: int, revive_time: int) -> None:
        """As `put_checkpoint`; `revive_time` (ms) is that of the checkpoint."""
        if self.keeper is not None:
            self.keeper(ack)
            return
        tag = BATCH_ACK_TAG if ack.offsets else ACK_TAG
        words = (ack.topic, ack.queue_id, ack.offset, ack.group, ack.pop_time, ack.broker_name, ACK_TAG)
        self._put(revive_queue_id, tag, encode_json(ack), "@".join(map(str, words)), revive_time)

    def _put(self, revive_queue_id: int, tag: str, body: bytes, unique_key: str, deliver_ms: int) -> None:
        appender = self._appender
        now_ms = clock.now_ms()
        properties = encode_properties(
            {names.TAGS: tag, names.TIMER_DELIVER_MS: str(deliver_ms), names.UNIQUE_KEY: unique_key}
        )
        queue, properties, code = self._delay(
            appender.store.queue(self.topic, revive_queue_id % self.queue_nums), properties, tags_code(tag.encode())
        )
        # A pop has been counted by now, for which `check_room` was asked.
        with appender.store.waiting():
            appender.append(queue, 0, 0, now_ms, appender.store_host, 0, body, properties, code)
