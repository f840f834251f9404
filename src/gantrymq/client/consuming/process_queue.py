"""ProcessQueue: the messages of one queue that a consumer has pulled and not yet consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.protocol.bodies.consumer import ProcessQueueInfo
from gantrymq.protocol.message import MessageExt, MessageQueue


@dataclass(slots=True, frozen=True)
class FlowLimits:
    """How much of one queue a consumer holds before it stops pulling (`DefaultMQPushConsumer`).

    `max_bytes` are those of records as they are stored: bodies may be compressed. `max_span` is the distance between
    the oldest and the newest of `max_messages`, in queue offsets; consumers that handle a queue in order have none.
    """

    #: pullThresholdForQueue.
    max_messages: int = 1000
    #: pullThresholdSizeForQueue.
    max_bytes: int = 100 * 1024 * 1024
    #: consumeConcurrentlyMaxSpan.
    max_span: int = 2000


class ProcessQueue:
    """A queue's state in one consumer (client/impl/consumer/ProcessQueue).

    `topic_begin` is the largest one of all pulls, None before the first (`private_fields.TOPIC_BEGIN_FIELD`).
    `next_offset` is where the next pull begins. `dropped` says that the queue is no longer this consumer's: what is
    left of it is neither handled nor committed. `on_room` is called once when the queue is no longer full. `last_pull`
    and `last_consume` are seconds since the epoch.
    """

    def __init__(
        self, queue: MessageQueue, next_offset: int, limits: FlowLimits, counters: TopicCounters | None = None
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        #: Where the queue ended when it was pulled last.
        self.max_offset = next_offset
        self.topic_begin: int | None = None
        self.dropped = False
        self.on_room: Callable[[], None] | None = None
        self.counters = counters or TopicCounters()
        self.last_pull = 0.0
        #: What the last pull ended with.
        self.last_error: Exception | None = None
        self.last_consume = 0.0
        self._limits = limits
        self._paused = False
        self._pending: dict[int, MessageExt] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, message: MessageExt) -> bool:
        return message.queue_offset in self._pending

    def put(self, messages: Iterable[MessageExt]) -> None:
        """Takes pulled messages, in the order of their offsets."""
        pending = self._pending
        for message in messages:
            pending[message.queue_offset] = message
            # As stored: what a body decompresses to isn't known yet.
            self._bytes += message.store_size

    def remove(self, message: MessageExt) -> None:
        """Says that a message is dealt with: consumed, or sent back to the broker."""
        if self._pending.pop(message.queue_offset, None) is not None:
            self._bytes -= message.store_size
            if self.on_room is not None:
                self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self.on_room is not None and not self.is_full:
            on_room, self.on_room = self.on_room, None
            on_room()

    @property
    def paused(self) -> bool:
        """A paused queue is full, whatever is in it."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._tell_of_room()

    @property
    def first(self) -> MessageExt | None:
        """The oldest message that is not dealt with."""
        return next(iter(self._pending.values()), None)

    @property
    def commit_offset(self) -> int:
        """The first queue offset that is not dealt with; all before it are."""
        return next(iter(self._pending), self.next_offset)

    @property
    def lag(self) -> int:
        """Messages that are stored and not dealt with, as of the last pull."""
        return max(self.max_offset - self.commit_offset, 0)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that nothing should be pulled for now."""
        pending, limits = self._pending, self._limits
        if self._paused or len(pending) >= limits.max_messages or self._bytes >= limits.max_bytes:
            return True
        return bool(pending) and self.next_offset - next(iter(pending)) > limits.max_span

    def info(self) -> ProcessQueueInfo:
        """For an operator who asks."""
        pending = self._pending
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
            cached_msg_min_offset=next(iter(pending), 0),
            cached_msg_max_offset=next(reversed(pending), 0),
            cached_msg_count=len(pending),
            cached_msg_size_in_mib=self._bytes // (1024 * 1024),
            droped=self.dropped,
            last_pull_timestamp=round(self.last_pull * 1000),
            last_consume_timestamp=round(self.last_consume * 1000),
        )
