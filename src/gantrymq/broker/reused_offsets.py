"""Groups that are ahead of a queue which has lost its end: the next messages get the offsets of what was lost.

A power failure takes what wasn't on the disk yet, and consumers may have had it: messages are delivered before they are
flushed, with SYNC_FLUSH too. Who then asks for more than the queue has is sent back to where it was recovered
(`MessageStore.get`). But when as many messages have come meanwhile, delayed ones above all, such an offset looks right,
and the group would never have them: Java's brokers skip them so. Here a broker remembers for a while how far each group
can know a queue.
"""

from __future__ import annotations

from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.store.consume_queue import ConsumeQueue

#: Consumers that were there before are back in this time, s.
WHILE_S = 120.0


class ReusedOffsets:
    """From a broker's start until `until`, loop time."""

    def __init__(self, offsets: ConsumerOffsets, until: float) -> None:
        self.until = until
        self._offsets = offsets
        #: The offset behind the last message that the group was given, or told that there is none.
        self._known: dict[tuple[ConsumeQueue, str], int] = {}

    def end_of(self, queue: ConsumeQueue, group: str, offset: int) -> int | None:
        """Where a group must go on that asks from `offset` on; None when it may have that from this broker."""
        if queue.recovered_end is None:
            return None
        known = self._known.get((queue, group), queue.recovered_end)
        committed = self._offsets.query(group, queue.topic, queue.queue_id)
        # A group that has never committed anything begins where it likes.
        if offset <= known or committed is None:
            return None
        # What was pulled and isn't dealt with yet is dropped by who goes back.
        return max(min(known, committed), queue.min_offset)

    def is_of_lost(self, queue: ConsumeQueue, group: str, offset: int) -> bool:
        """A commit of what the group had before the queue lost it: who makes it hasn't heard yet that it goes back.

        It would hide what others of the group, who have gone back, have dealt with.
        """
        if queue.recovered_end is None or self._offsets.query(group, queue.topic, queue.queue_id) is None:
            return False
        return offset > self._known.get((queue, group), queue.recovered_end)

    def answered(self, queue: ConsumeQueue, group: str, next_offset: int) -> None:
        """The group was told to go on there, or somebody wants it to."""
        if queue.recovered_end is not None:
            key = queue, group
            self._known[key] = max(self._known.get(key, queue.recovered_end), next_offset)
