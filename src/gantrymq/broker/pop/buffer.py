"""Checkpoints of the last pops, in memory, and the offsets that they hold back (`PopBufferMergeService`).

A checkpoint says which messages one pop took from one queue. Most are acknowledged within seconds, so a checkpoint
stays here first and costs no record in the log. It goes to the revive log, with what is acknowledged by then in its bit
map, when it has been here for `stay_ms`, when it is about to come back, or when the broker stops.

A group's offset moves only over checkpoints that are acknowledged whole or are in the log. So after a crash what was
here is popped again from the queue: at least once, as everywhere. If another commit moves the group's offset, these
checkpoints do not move it any more. A reset, or the deletion of their topic, discards them.

While a slave stands in for its master, whose log it can't write, checkpoints stay here until their messages come back,
and hold the offset back for so long.

Plain tables, told the time in ms.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.errors import StoreBusy
from gantrymq.protocol.bodies.pop import Checkpoint, PopKey

#: Topic, group, queue id.
QueueKey = tuple[str, str, int]

#: A checkpoint that comes back sooner than this after it would have to leave isn't kept here at all, ms.
_SOON_MS = 1500


@dataclass(slots=True, eq=False)
class _Pop:
    """One pop; `next_offset` is where the next one of its queue begins. `is_settled`: it holds back no offset."""

    next_offset: int
    checkpoint: Checkpoint | None = None
    revive_queue_id: int = 0
    acked: int = 0
    is_settled: bool = False


@dataclass(slots=True)
class _Queue:
    """The pops of a group in a queue, the oldest first; `committed` is the group's offset as we left it."""

    committed: int | None
    pops: deque[_Pop]


class PopBuffer:
    """`store(checkpoint, revive queue id)` writes to the revive log, or raises and will be called again.

    With `keeps_all` it is called when the checkpoint's messages are to come back, and not before.
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
        self._stay_ms = stay_ms
        self._leave_before_ms = leave_before_ms
        self._max_size = max_size
        self._by_key: dict[PopKey, _Pop] = {}
        self._queues: dict[QueueKey, _Queue] = {}
        #: (when it has to leave, number that makes it comparable, key)
        self._leaving: list[tuple[int, int, PopKey]] = []
        self._count = 0
        self.keeps_all = False

    def set_limits(self, *, stay_ms: int, leave_before_ms: int, max_size: int) -> None:
        """For the checkpoints that come from now on."""
        self._stay_ms = stay_ms
        self._leave_before_ms = leave_before_ms
        self._max_size = max_size

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def held_offsets(self) -> int:
        """How many pops hold back their group's offset, or wait behind one that does."""
        return sum(len(queue.pops) for queue in self._queues.values())

    def add(self, checkpoint: Checkpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Takes in what a pop is about to hand out. Raises what `store` raises; then nothing may be handed out."""
        pop = _Pop(next_offset, checkpoint, revive_queue_id)
        is_here = not self._is_full(checkpoint)
        if is_here and not self.keeps_all:
            leaves_at = min(checkpoint.pop_time + self._stay_ms, checkpoint.revive_time - self._leave_before_ms)
            is_here = leaves_at - now_ms >= _SOON_MS
        else:
            leaves_at = checkpoint.revive_time
        if is_here:
            self._keep(pop, checkpoint, leaves_at)
        elif self.keeps_all:
            raise StoreBusy(f"{len(self._by_key)} pops are in memory, and there is no log for more")
        else:
            self._store(checkpoint, revive_queue_id)
            pop.is_settled = True
        self._append((checkpoint.topic, checkpoint.group, checkpoint.queue_id), pop)

    def prolong(self, key: PopKey, checkpoint: Checkpoint, revive_queue_id: int) -> bool:
        """Has one message of a pop come back at another time, as `checkpoint` says, which is of that message alone.

        To be used with `keeps_all`. False when its pop isn't here; raises StoreBusy when there is no room.
        """
        pop = self._by_key.get(key)
        if pop is None or pop.checkpoint is None:
            return False
        if self._is_full(checkpoint):
            raise StoreBusy(f"{len(self._by_key)} pops are in memory, and there is no log for more")
        new = _Pop(pop.checkpoint.start_offset, checkpoint, revive_queue_id)
        entry = self._queues.get((checkpoint.topic, checkpoint.group, checkpoint.queue_id))
        if entry is not None and pop in entry.pops:
            # The offset passes over neither of them alone.
            entry.pops.insert(entry.pops.index(pop), new)
        self._keep(new, checkpoint, checkpoint.revive_time)
        return self.ack(key, [checkpoint.start_offset])

    def forget(self) -> None:
        """The broker is a slave now: what is here is popped again at the master."""
        self._by_key.clear()
        self._queues.clear()
        self._leaving.clear()

    def discard(self, queues: Collection[QueueKey]) -> None:
        """Removes the pops in these queues: they are not redelivered and hold no offset back."""
        for queue in queues:
            self._queues.pop(queue, None)
        self._forget(lambda key: key[:3] in queues)

    def discard_topics(self, topics: Collection[str]) -> None:
        """Removes the pops of all groups in these topics."""
        for queue in [queue for queue in self._queues if queue[0] in topics]:
            del self._queues[queue]
        self._forget(lambda key: key[0] in topics)

    def _forget(self, is_discarded: Callable[[PopKey], bool]) -> None:
        """Scans all pops. For `popCkMaxBufferSize` (200,000) pops this takes 50 ms, but resets are rare."""
        for key in [key for key in self._by_key if is_discarded(key)]:
            del self._by_key[key]

    def _is_full(self, checkpoint: Checkpoint) -> bool:
        return len(self._by_key) >= self._max_size or checkpoint.key in self._by_key

    def _keep(self, pop: _Pop, checkpoint: Checkpoint, leaves_at: int) -> None:
        self._by_key[checkpoint.key] = pop
        self._count += 1
        heapq.heappush(self._leaving, (leaves_at, self._count, checkpoint.key))

    def skip(self, queue: QueueKey, next_offset: int) -> None:
        """A pop looked at messages up to `next_offset` and wanted none."""
        self._append(queue, _Pop(next_offset, is_settled=True))

    def ack(self, key: PopKey, offsets: Iterable[int]) -> bool:
        """Marks messages as acknowledged; False when their checkpoint isn't here (any more).

        Offsets that aren't the checkpoint's are ignored.
        """
        pop = self._by_key.get(key)
        if pop is None or pop.checkpoint is None:
            return False
        places = pop.checkpoint.offsets
        for offset in offsets:
            if offset in places:
                pop.acked |= 1 << places.index(offset)
        if pop.acked == (1 << len(places)) - 1:
            del self._by_key[key]
            self._settle(pop)
        return True

    def next_offset(self, queue: QueueKey) -> int | None:
        """Where the group's next pop in a queue begins, None when that is its committed offset."""
        entry = self._queues.get(queue)
        if entry is None:
            return None
        if self._was_moved(queue, entry):
            del self._queues[queue]
            return None
        return entry.pops[-1].next_offset

    @property
    def next_due(self) -> int | None:
        """When `expire` has something to do, ms; None while nothing is here."""
        while self._leaving and self._leaving[0][2] not in self._by_key:
            heapq.heappop(self._leaving)
        return self._leaving[0][0] if self._leaving else None

    def expire(self, now_ms: int, limit: int | None = None) -> bool:
        """Moves the checkpoints whose time has come to the log, at most `limit`; whether there are more.

        Raises what `store` raises; the rest is still here.
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
            # While the first ones wait, a subscription may pass over any number of messages.
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
    """32 bits as Java's int."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
