"""ProcessQueue: the messages of one queue that a consumer has pulled and not yet consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.client.options import Options, documented, option
from gantrymq.protocol.bodies.consumer import ProcessQueueInfo
from gantrymq.protocol.message import MessageExt, MessageQueue


@documented
@dataclass(slots=True, frozen=True)
class FlowLimits(Options):
    """How much of one queue a consumer fetches before it stops pulling (`DefaultMQPushConsumer`)."""

    max_messages: int = option(1000, "Messages that are fetched and not consumed (pullThresholdForQueue).")
    max_bytes: int = option(100 * 1024 * 1024, "Bytes of their records as they are stored (pullThresholdSizeForQueue).")
    max_span: int = option(
        2000,
        "Distance between the oldest and the newest of them in queue offsets (consumeConcurrentlyMaxSpan). Orderly "
        "consumers have no such limit.",
    )


class ProcessQueue:
    """A queue's state in one consumer (`ProcessQueue`).

    Attributes:
        topic_begin: Largest TOPIC_BEGIN_FIELD of all pulls (`private_fields`). None before the first pull.
        recovery: Last RECOVERY_FIELD of all pulls (`private_fields`), 0 without it. None before the first pull.
        next_offset: Offset of the next pull.
        dropped: True if the queue is revoked. Its pending messages are neither handled nor committed.
        last_pull: Time of the last pull, seconds since the epoch.
        last_error: Error of the last pull, or None.
        last_consume: Time of the last handled message, seconds since the epoch.
    """

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        limits: FlowLimits,
        counters: TopicCounters | None = None,
        *,
        topic_begin: int | None = None,
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        #: End of the queue at the last pull.
        self.max_offset = next_offset
        self.topic_begin = topic_begin
        self.recovery: int | None = None
        self.dropped = False
        self.counters = counters or TopicCounters()
        self.last_pull = 0.0
        self.last_error: Exception | None = None
        self.last_consume = 0.0
        self._limits = limits
        self._paused = False
        self._pending: dict[int, MessageExt] = {}
        self._bytes = 0
        #: Called once when the queue is no longer full.
        self._on_not_full: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, message: MessageExt) -> bool:
        return message.queue_offset in self._pending

    def put(self, messages: Iterable[MessageExt]) -> None:
        """Adds pulled messages, in the order of their offsets."""
        pending = self._pending
        for message in messages:
            pending[message.queue_offset] = message
            # Counts the stored size, because the decompressed size is not known yet.
            self._bytes += message.store_size

    def remove(self, message: MessageExt) -> None:
        """Removes a message that is consumed, or sent back to the broker."""
        if self._pending.pop(message.queue_offset, None) is not None:
            self._bytes -= message.store_size
            # Compares the number here, because a consumer with a backlog would compute all of `is_full` each time.
            if self._on_not_full is not None and len(self._pending) < self._limits.max_messages:
                self._notify_if_not_full()

    def when_not_full(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the queue is no longer full. Replaces an earlier callback."""
        self._on_not_full = callback

    def pull_ended(self, error: Exception | None) -> None:
        """Records the end of a pull, and its error if it failed."""
        self.last_error = error

    def _notify_if_not_full(self) -> None:
        if self._on_not_full is not None and not self.is_full:
            callback, self._on_not_full = self._on_not_full, None
            callback()

    @property
    def paused(self) -> bool:
        """Whether the queue is paused. A paused queue counts as full."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._notify_if_not_full()

    @property
    def first(self) -> MessageExt | None:
        """The oldest pending message."""
        return next(iter(self._pending.values()), None)

    @property
    def commit_offset(self) -> int:
        """The offset to commit: the offset of the oldest pending message or, without one, the next offset."""
        return next(iter(self._pending), self.next_offset)

    @property
    def lag(self) -> int:
        """Number of stored messages that are not consumed, as of the last pull."""
        return max(self.max_offset - self.commit_offset, 0)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that no pull should start."""
        pending, limits = self._pending, self._limits
        if self._paused or len(pending) >= limits.max_messages or self._bytes >= limits.max_bytes:
            return True
        return bool(pending) and self.next_offset - next(iter(pending)) > limits.max_span

    def info(self) -> ProcessQueueInfo:
        """Returns the state for an operator's request."""
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
