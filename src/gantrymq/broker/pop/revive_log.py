"""Writes checkpoints and acknowledgements to the revive log, rmq_sys_REVIVE_LOG_<cluster>, in Java's format.

Checkpoints and acknowledgements are timer messages. The timer delivers a checkpoint to the log one second before the
invisible duration ends, and its acknowledgements at the end of this duration. The log is therefore in order of time,
and its reader (`revive`) waits only a moment for the acknowledgements of a checkpoint.

Sources: `PopMessageProcessor.buildCkMsg`, `AckMessageProcessor.appendAck`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gantrymq.broker.append import Appender
from gantrymq.broker.pop.revive_counts import ReviveCounts
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

#: Time between the delivery of a checkpoint and the end of its invisible duration, in ms
#: (`PopAckConstants.ackTimeInterval`).
CHECKPOINT_LEAD_MS = 1000


class LogTimer(Protocol):
    """The timer that delivers records to the revive log."""

    def redirect(self, queue: ConsumeQueue, properties: bytes, tags_code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Returns the (queue, properties, tags code) under which a message is stored until its TIMER_DELIVER_MS.

        Raises RequestRefused.
        """

    def has_delivered_due(self) -> bool:
        """Returns True if no message that is due waits for its delivery."""


def revive_topic(cluster: str) -> str:
    """Returns the name of the revive topic of a cluster."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


class ReviveLog:
    """Writes the revive log of one broker."""

    def __init__(self, appender: Appender, cluster: str, queue_nums: int, timer: LogTimer) -> None:
        self._appender = appender
        self._timer = timer
        self.topic = revive_topic(cluster)
        self.queue_nums = queue_nums
        self.counts = ReviveCounts()
        self._is_preallocated = False
        #: Receives the acknowledgements on an acting master, which cannot write the log.
        self._keeper: Callable[[Ack], None] | None = None

    def keep_acks_by(self, keeper: Callable[[Ack], None] | None) -> None:
        """Sends acknowledgements to `keeper` instead of the log. None restores the log."""
        self._keeper = keeper

    @property
    def end(self) -> int:
        """The physical offset of the end of the commit log, for checkpoints."""
        return self._appender.store.max_physical_offset

    def is_up_to_date(self) -> bool:
        """Returns True if the log has all records that are due."""
        return self._timer.has_delivered_due()

    def check_capacity(self) -> None:
        """Ensures before each pop that its records can be stored without waiting for a file.

        Raises StoreBusy while the first file of the timer's queue is created. Later files are preallocated.
        """
        if not self._is_preallocated and self._keeper is None:
            try:
                self._appender.store.queue(TIMER_TOPIC, 0).preallocate()
            except StoreBusy:
                raise
            except StoreError as e:
                # If the disk is full, checkpoints stay in memory as long as possible.
                log.info("there is no room for notes about pops yet: %s", e)
                return
            self._is_preallocated = True

    def put_checkpoint(self, checkpoint: Checkpoint, revive_queue_id: int) -> None:
        """Writes a checkpoint. Raises RequestRefused or StoreError if it cannot be stored."""
        words = (checkpoint.topic, checkpoint.queue_id, checkpoint.start_offset, checkpoint.group)
        unique_key = "@".join(map(str, (*words, checkpoint.pop_time, checkpoint.broker_name, CHECKPOINT_TAG)))
        deliver_ms = checkpoint.revive_time - CHECKPOINT_LEAD_MS
        self._put(revive_queue_id, CHECKPOINT_TAG, encode_json(checkpoint), unique_key, deliver_ms)
        self.counts.add_written(checkpoint)

    def put_ack(self, ack: Ack, revive_queue_id: int, revive_time: int) -> None:
        """Writes an acknowledgement. `revive_time` is that of its checkpoint, in ms. Raises as `put_checkpoint`."""
        if self._keeper is not None:
            self._keeper(ack)
            return
        tag = BATCH_ACK_TAG if ack.offsets else ACK_TAG
        words = (ack.topic, ack.queue_id, ack.offset, ack.group, ack.pop_time, ack.broker_name, ACK_TAG)
        self._put(revive_queue_id, tag, encode_json(ack), "@".join(map(str, words)), revive_time)
        self.counts.add_written(ack)

    def _put(self, revive_queue_id: int, tag: str, body: bytes, unique_key: str, deliver_ms: int) -> None:
        appender = self._appender
        now_ms = clock.now_ms()
        properties = encode_properties(
            {names.TAGS: tag, names.TIMER_DELIVER_MS: str(deliver_ms), names.UNIQUE_KEY: unique_key}
        )
        queue, properties, code = self._timer.redirect(
            appender.store.queue(self.topic, revive_queue_id % self.queue_nums), properties, tags_code(tag.encode())
        )
        # The append may block, because the pop cannot be undone. `check_capacity` has made sure that the file exists.
        with appender.store.waiting():
            appender.append(queue, 0, 0, now_ms, appender.store_host, 0, body, properties, code)
