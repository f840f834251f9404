"""ReusedOffsets: consumer offsets that are ahead of a queue after the queue has lost its end.

A power failure destroys messages that are not on disk yet. Consumers may already have them, because messages are
delivered before the flush, even with SYNC_FLUSH. The next messages of the queue then get the same offsets.

If a group pulls from an offset beyond the end of the queue, `MessageStore.get` sends it back to the recovered end. If
enough new messages arrive before that pull, the offset is valid again. The group then skips the new messages before
this offset, as with Java's brokers. To prevent this, the broker records for a while how far each group can have read
each queue.
"""

from __future__ import annotations

from gantrymq.broker.tables import ConsumerOffsets
from gantrymq.store.consume_queue import ConsumeQueue

#: Duration of these checks, in seconds. Within this time, all consumers reconnect after the start.
WHILE_S = 120.0


class ReusedOffsets:
    """Detects reused offsets. Used by a master from its start until `until` (event-loop time, in seconds)."""

    def __init__(self, offsets: ConsumerOffsets, until: float) -> None:
        self.until = until
        self._offsets = offsets
        #: (queue, group) -> the largest next offset that this broker has returned to the group.
        self._known: dict[tuple[ConsumeQueue, str], int] = {}

    def end_of(self, queue: ConsumeQueue, group: str, offset: int) -> int | None:
        """Returns the offset at which a group that pulls from `offset` must continue. None if `offset` is valid."""
        if queue.recovered_end is None:
            return None
        known = self._known.get((queue, group), queue.recovered_end)
        committed = self._offsets.query(group, queue.topic, queue.queue_id)
        # A group without a committed offset may start anywhere.
        if offset <= known or committed is None:
            return None
        # A consumer that is sent back discards its pulled messages, so it must receive the uncommitted messages again.
        return max(min(known, committed), queue.min_offset)

    def is_of_lost(self, queue: ConsumeQueue, group: str, offset: int) -> bool:
        """Returns whether a committed offset includes messages that the queue has lost.

        If so, the committing consumer has not been sent back yet. Its commit would hide the progress of members that
        have been sent back.
        """
        if queue.recovered_end is None or self._offsets.query(group, queue.topic, queue.queue_id) is None:
            return False
        return offset > self._known.get((queue, group), queue.recovered_end)

    def answered(self, queue: ConsumeQueue, group: str, next_offset: int) -> None:
        """Records the next offset of a group, which comes from a response to a pull or from an administrator."""
        if queue.recovered_end is not None:
            key = queue, group
            self._known[key] = max(self._known.get(key, queue.recovered_end), next_offset)
