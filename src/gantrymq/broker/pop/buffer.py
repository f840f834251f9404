"""Keeps checkpoints of recent pops in memory, and computes the group offsets from them (`PopBufferMergeService`).

A checkpoint lists the messages that one pop took from one queue. Most messages are acknowledged within seconds, so a
checkpoint stays in memory first and needs no record in the log. It moves to the revive log in these cases, with the
acknowledgements so far in its bit map:
- it has been in the buffer for `stay_ms`,
- its invisible duration ends soon,
- the broker stops.

A group's offset moves only past checkpoints that are completely acknowledged or in the log. After a crash, messages
with a checkpoint in memory are therefore popped again (at-least-once delivery). If another commit moves the group's
offset, the checkpoints in the buffer have no effect on the offset. A reset or the deletion of the topic discards them.

An acting master cannot write the master's log. Its checkpoints stay in memory until their messages are redelivered, and
the group's offset does not pass them.

The caller passes the current time, in ms.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from gantrymq.broker.tables import ConsumerOffsets
from gantrymq.errors import StoreBusy
from gantrymq.protocol.bodies.pop import Checkpoint, PopKey

#: Topic, group, queue id.
QueueKey = tuple[str, str, int]

#: A checkpoint skips the buffer if it would leave the buffer again within this time, in ms.
_SOON_MS = 1500


@dataclass(slots=True, eq=False)
class _Pop:
    """One pop. The next pop of its queue begins at `next_offset`. If `is_settled`, the group's offset may pass it."""

    next_offset: int
    checkpoint: Checkpoint | None = None
    revive_queue_id: int = 0
    acked: int = 0
    is_settled: bool = False


@dataclass(slots=True)
class _Queue:
    """The pops of a group in a queue, oldest first. `committed` is the offset that the buffer last committed."""

    committed: int | None
    pops: deque[_Pop]


class PopBuffer:
    """Stores the checkpoints of recent pops in memory.

    `store(checkpoint, revive queue id)` writes a checkpoint to the revive log. If `store` raises, the buffer calls it
    again later. With `keeps_all`, the buffer calls `store` only when the messages of the checkpoint must be
    redelivered.
    """

    def __init__(
        self,
        offsets: ConsumerOffsets,
        store: Callable[[Checkpoint, int], None],
        *,
        stay_ms: int,
        leave_before_ms: int,
        max_size: int,
    ) -> None:
        self._offsets = offsets
        self._store = store
        self.stay_ms = stay_ms
        self.leave_before_ms = leave_before_ms
        self.max_size = max_size
        self._by_key: dict[PopKey, _Pop] = {}
        self._queues: dict[QueueKey, _Queue] = {}
        #: Heap of (time at which the checkpoint leaves the buffer, tie-breaker, key).
        self._leaving: list[tuple[int, int, PopKey]] = []
        self._count = 0
        self._keeps_all = False

    @property
    def keeps_all(self) -> bool:
        """True if checkpoints stay in memory until their messages are redelivered, as on an acting master."""
        return self._keeps_all

    def keep_all(self, keeps_all: bool) -> None:
        """Sets `keeps_all`."""
        self._keeps_all = keeps_all

    def set_limits(self, *, stay_ms: int, leave_before_ms: int, max_size: int) -> None:
        """Sets the limits for new checkpoints."""
        self.stay_ms = stay_ms
        self.leave_before_ms = leave_before_ms
        self.max_size = max_size

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def in_flight_offsets(self) -> int:
        """The number of pops that the offset of their group has not passed."""
        return sum(len(queue.pops) for queue in self._queues.values())

    def add(self, checkpoint: Checkpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Adds the checkpoint of a pop, before its messages are sent.

        Raises the errors of `store`, or StoreBusy if the buffer is full on an acting master. After an error, the
        messages must not be sent.
        """
        pop = _Pop(next_offset, checkpoint, revive_queue_id)
        is_here = not self._is_full(checkpoint)
        if is_here and not self._keeps_all:
            leaves_at = min(checkpoint.pop_time + self.stay_ms, checkpoint.revive_time - self.leave_before_ms)
            is_here = leaves_at - now_ms >= _SOON_MS
        else:
            leaves_at = checkpoint.revive_time
        if is_here:
            self._keep(pop, checkpoint, leaves_at)
        elif self._keeps_all:
            raise StoreBusy(f"{len(self._by_key)} pops are in memory, and there is no log for more")
        else:
            self._store(checkpoint, revive_queue_id)
            pop.is_settled = True
        self._append((checkpoint.topic, checkpoint.group, checkpoint.queue_id), pop)

    def prolong(self, key: PopKey, checkpoint: Checkpoint, revive_queue_id: int) -> bool:
        """Sets the invisible duration of one message to that of `checkpoint`, which contains only this message.

        Only for `keeps_all`. Returns False if the pop is not in the buffer. Raises StoreBusy if the buffer is full.
        """
        pop = self._by_key.get(key)
        if pop is None or pop.checkpoint is None:
            return False
        if self._is_full(checkpoint):
            raise StoreBusy(f"{len(self._by_key)} pops are in memory, and there is no log for more")
        new = _Pop(pop.checkpoint.start_offset, checkpoint, revive_queue_id)
        entry = self._queues.get((checkpoint.topic, checkpoint.group, checkpoint.queue_id))
        if entry is not None and pop in entry.pops:
            # The group's offset passes the two pops only if both are settled.
            entry.pops.insert(entry.pops.index(pop), new)
        self._keep(new, checkpoint, checkpoint.revive_time)
        return self.ack(key, [checkpoint.start_offset])

    def forget(self) -> None:
        """Drops all pops, because the broker becomes slave. The master delivers their messages again."""
        self._by_key.clear()
        self._queues.clear()
        self._leaving.clear()

    def discard(self, queues: Collection[QueueKey]) -> None:
        """Removes the pops in these queues. Their messages are not redelivered, and no offset waits for them."""
        for queue in queues:
            self._queues.pop(queue, None)
        self._forget(lambda key: key[:3] in queues)

    def discard_topics(self, topics: Collection[str]) -> None:
        """Removes the pops of all groups in these topics."""
        for queue in [queue for queue in self._queues if queue[0] in topics]:
            del self._queues[queue]
        self._forget(lambda key: key[0] in topics)

    def _forget(self, is_discarded: Callable[[PopKey], bool]) -> None:
        """Scans all pops. The scan takes 50 ms for `popCkMaxBufferSize` (200,000) pops, but resets are rare."""
        for key in [key for key in self._by_key if is_discarded(key)]:
            del self._by_key[key]

    def _is_full(self, checkpoint: Checkpoint) -> bool:
        return len(self._by_key) >= self.max_size or checkpoint.key in self._by_key

    def _keep(self, pop: _Pop, checkpoint: Checkpoint, leaves_at: int) -> None:
        self._by_key[checkpoint.key] = pop
        self._count += 1
        heapq.heappush(self._leaving, (leaves_at, self._count, checkpoint.key))

    def skip(self, queue: QueueKey, next_offset: int) -> None:
        """Records that a pop has skipped the messages before `next_offset`: none matches, or they were deleted."""
        self._append(queue, _Pop(next_offset, is_settled=True))

    def ack(self, key: PopKey, offsets: Iterable[int]) -> bool:
        """Marks messages of a checkpoint as acknowledged. Returns False if the checkpoint is not in the buffer."""
        pop = self._by_key.get(key)
        if pop is None or pop.checkpoint is None:
            return False
        for offset in offsets:
            bit = pop.checkpoint.bit_of(offset)
            if bit >= 0:
                pop.acked |= 1 << bit
        if pop.acked == pop.checkpoint.all_bits:
            del self._by_key[key]
            self._settle(pop)
        return True

    def next_offset(self, queue: QueueKey) -> int | None:
        """Returns the offset at which the group's next pop in a queue begins; None if it is the committed offset."""
        entry = self._queues.get(queue)
        if entry is None:
            return None
        if self._was_moved(queue, entry):
            del self._queues[queue]
            return None
        return entry.pops[-1].next_offset

    @property
    def next_due(self) -> int | None:
        """The time at which the next checkpoint leaves the buffer, in ms; None if the buffer is empty."""
        while self._leaving and self._leaving[0][2] not in self._by_key:
            heapq.heappop(self._leaving)
        return self._leaving[0][0] if self._leaving else None

    def expire(self, now_ms: int, limit: int | None = None) -> bool:
        """Moves at most `limit` due checkpoints to the log. Returns True if more are due.

        Raises the errors of `store`. The remaining checkpoints stay in the buffer.
        """
        moved = 0
        while (due := self.next_due) is not None and due <= now_ms:
            if moved == limit:
                return True
            moved += 1
            key = self._leaving[0][2]
            pop = self._by_key[key]
            assert pop.checkpoint is not None
            self._store(msgspec.structs.replace(pop.checkpoint, bit_map=_java_int(pop.acked)), pop.revive_queue_id)
            del self._by_key[key]
            self._settle(pop)
        return False

    def _append(self, queue: QueueKey, pop: _Pop) -> None:
        entry = self._queues.get(queue)
        if entry is None or self._was_moved(queue, entry):
            topic, group, queue_id = queue
            entry = self._queues[queue] = _Queue(self._offsets.query(group, topic, queue_id), deque())
        if pop.is_settled and entry.pops and entry.pops[-1].is_settled:
            # Merges successive skips, so that a filter can skip any number of messages while earlier pops are in
            # flight.
            entry.pops[-1].next_offset = pop.next_offset
        else:
            entry.pops.append(pop)
        self._commit(queue, entry)

    def _settle(self, pop: _Pop) -> None:
        pop.is_settled = True
        checkpoint = pop.checkpoint
        assert checkpoint is not None
        queue = (checkpoint.topic, checkpoint.group, checkpoint.queue_id)
        entry = self._queues.get(queue)
        if entry is None:
            return
        if self._was_moved(queue, entry):
            del self._queues[queue]
        else:
            self._commit(queue, entry)

    def _commit(self, queue: QueueKey, entry: _Queue) -> None:
        offset = None
        while entry.pops and entry.pops[0].is_settled:
            offset = entry.pops.popleft().next_offset
        if offset is not None:
            topic, group, queue_id = queue
            self._offsets.commit(group, topic, queue_id, offset)
            entry.committed = offset
        if not entry.pops:
            del self._queues[queue]

    def _was_moved(self, queue: QueueKey, entry: _Queue) -> bool:
        topic, group, queue_id = queue
        return self._offsets.query(group, topic, queue_id) != entry.committed


def _java_int(bits: int) -> int:
    """Returns the value of 32 bits as Java's signed int."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
