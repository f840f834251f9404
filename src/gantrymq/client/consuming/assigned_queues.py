"""AssignedQueues: the queues that a consumer reads at the moment: takes them, gives them up, commits their offsets.

Source: client/impl/consumer/RebalanceImpl (updateProcessQueueTableInRebalance), RebalancePushImpl
(computePullFromWhere).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from gantrymq.background.repeating import Repeating
from gantrymq.background.shared import result_of
from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assignment import Assignment
from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere, decides_itself
from gantrymq.client.consuming.consume_statistics import ConsumeStatistics
from gantrymq.client.consuming.held_locks import HeldLocks
from gantrymq.client.consuming.offset_store import OffsetStore
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.queue_puller import PULL_BATCH_SIZE, QueuePuller, Sink
from gantrymq.client.lifecycle import Deadline
from gantrymq.errors import ClientError, ConnectFailed, GantryError, HeaderError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
    SubscriptionData,
)
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

log = peer_log(__name__)

#: persistConsumerOffsetInterval.
COMMIT_INTERVAL_S = 5.0
#: A queue that goes on elsewhere more than once does so after such a pause, s.
MOVE_PAUSE_S = 1.0


@dataclass(slots=True, frozen=True)
class PullOptions:
    """How a consumer pulls.

    `consume_from_where` says where a group begins that has no offset yet: at the end, at the beginning or at the first
    message stored at `consume_timestamp_ms` (ms since the epoch). It has no say once an offset is committed.
    At CONSUME_FROM_LAST_OFFSET a broker has a new group begin at 0 while the queue is young; at CONSUME_FROM_END not.
    """

    consume_from_where: ConsumeFromWhere = CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int = 0
    batch_size: int = PULL_BATCH_SIZE
    #: No body is decompressed to more bytes.
    max_body_size: int = MAX_DECOMPRESSED_SIZE
    limits: FlowLimits = field(default_factory=FlowLimits)


class AssignedQueues:
    """Queues and their pullers.

    With `commits` the offsets are committed to `offset_store` every 5 s and when a queue is given up; with
    `commits_by_pull` each pull does so, too. With `locks` a queue is read only under the broker's lock. `finish` is
    awaited after a queue is dropped and before its offset is committed.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        sink: Sink,
        options: PullOptions,
        offset_store: OffsetStore,
        assignment: Assignment,
        *,
        commits: bool,
        commits_by_pull: bool,
        lite: bool,
        locks: HeldLocks | None = None,
        finish: Callable[[ProcessQueue], Awaitable[None]] | None = None,
    ) -> None:
        self.offset_store = offset_store
        self.statistics = ConsumeStatistics()
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._sink = sink
        self._options = options
        self._assignment = assignment
        self._commits = commits
        self._commits_by_pull = commits_by_pull
        self._lite = lite
        self._locks = locks
        self._finish = finish
        self._queues: dict[MessageQueue, tuple[ProcessQueue, QueuePuller]] = {}
        #: When each queue went on elsewhere for the last time (loop time).
        self._moved_at: dict[MessageQueue, float] = {}
        self._moves = Tasks(f"a queue of group {group} that goes on elsewhere")
        #: One change at a time: a queue that is sought isn't given up or taken meanwhile.
        self._changing = asyncio.Lock()
        #: Each in a task: one that was half done because its caller was cancelled would leave a queue unread.
        self._changes: dict[asyncio.Task[None], None] = {}
        self._committer = Repeating(f"the commit of group {group}", self._commit_each, COMMIT_INTERVAL_S)
        if commits:
            self._committer.start()

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._queues)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        return [process_queue for process_queue, _ in self._queues.values()]

    def process_queue(self, queue: MessageQueue) -> ProcessQueue:
        """Raises ClientError for a queue that is not held."""
        if queue not in self._queues:
            raise ClientError(f"{queue} is not assigned to this consumer")
        return self._queues[queue][0]

    async def assign(self, topic: str, queues: set[MessageQueue]) -> None:
        """Makes `queues` those of `topic` that are read. Raises when one couldn't be taken; the others are."""
        await self._as_a_whole(self._assign(topic, queues))

    async def _assign(self, topic: str, queues: set[MessageQueue]) -> None:
        # Outside of the lock: who is told may seek.
        await self._assignment.revoked({queue for queue in self._queues if queue.topic == topic} - queues)
        async with self._changing:
            held = {queue for queue in self._queues if queue.topic == topic}
            if held != queues:
                log.info("group %s reads %d queues of %s: %s", self._group, len(queues), topic, sorted(queues))
            outcomes = await asyncio.gather(
                *(self._release(queue) for queue in held - queues),
                *(self._take(queue) for queue in sorted(queues - held)),
                return_exceptions=True,
            )
        await self._assignment.assigned((queues - held) & self._queues.keys())
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on at `offset`; what was pulled before is dropped. Raises ClientError for a queue that is not held."""
        await self._as_a_whole(self._seek(queue, offset))

    async def _seek(self, queue: MessageQueue, offset: int) -> None:
        async with self._changing:
            paused = self.process_queue(queue).paused
            await self._drop(queue)
            self._pull(queue, offset).paused = paused

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Like `seek`, and commits `offset`, which may be before the one that was committed."""
        await self._as_a_whole(self._reset(queue, offset))

    async def _reset(self, queue: MessageQueue, offset: int) -> None:
        async with self._changing:
            self.process_queue(queue)
            await self._drop(queue)
            self.offset_store.forget(queue)
            try:
                await self.offset_store.commit({queue: offset})
            finally:
                self._pull(queue, offset)

    async def _as_a_whole(self, change: Coroutine[Any, Any, None]) -> None:
        """Makes a change, which goes on when the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes[task] = None
        task.add_done_callback(self._changed)
        await result_of(task)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._changes.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a change of the queues of group %s failed: %s", self._group, error)

    async def commit_all(self) -> None:
        """Commits the offsets of all queues; raises what the first failure was after all were tried."""
        await self.offset_store.commit(
            {held.queue: held.commit_offset for held in self.process_queues if self._is_own(held)}
        )

    async def stop(self) -> None:
        """Ends the pulls; what was pulled can still be dealt with."""
        await self._moves.stop()
        for change in self._changes:
            change.cancel()
        if self._changes:
            await asyncio.wait(self._changes)
        await self._committer.stop()
        await asyncio.gather(*(puller.stop() for _, puller in self._queues.values()))

    async def close(self, deadline: Deadline) -> None:
        """After `stop`: commits, gives the locks back, as long as there is time."""
        try:
            if self._commits:
                async with asyncio.timeout(deadline.left()):
                    await self._commit_last(*self.process_queues)
        except TimeoutError:
            log.warning("the offsets of group %s were not all committed: what was done since is repeated", self._group)
        finally:
            if self._locks is not None:
                await self._locks.close(deadline.left())
            for process_queue in self.process_queues:
                process_queue.dropped = True
            revoked = self.queues
            self._queues.clear()
            await self._assignment.revoked(revoked)

    async def _release(self, queue: MessageQueue) -> None:
        """Stops reading a queue: what is not handled yet is left to its next reader."""
        process_queue = await self._drop(queue)
        if self._commits:
            await self._commit_last(process_queue)
        self.offset_store.forget(queue)
        self._moved_at.pop(queue, None)
        if self._locks is not None:
            await self._locks.unlock([queue])

    async def _drop(self, queue: MessageQueue) -> ProcessQueue:
        process_queue, puller = self._queues.pop(queue)
        process_queue.dropped = True
        await puller.stop()
        if self._finish is not None:
            await self._finish(process_queue)
        return process_queue

    async def _take(self, queue: MessageQueue) -> None:
        if self._locks is not None and not await self._locks.lock([queue]):
            raise ClientError(f"{queue} is still locked for another consumer of group {self._group}")
        offset = await self._first_offset(queue)
        if offset < 0:
            raise HeaderError(f"the broker says that {queue} begins at offset {offset} for group {self._group}")
        self._pull(queue, offset)

    def _pull(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            raise ClientError(f"topic {queue.topic} was unsubscribed meanwhile")
        process_queue = ProcessQueue(queue, offset, self._options.limits, self.statistics.of(queue.topic))
        puller = QueuePuller(
            self._client,
            self._group,
            process_queue,
            subscription,
            self._sink,
            self._moved,
            # Who wants to hold few messages isn't given many at once.
            batch_size=min(self._options.batch_size, self._options.limits.max_messages),
            max_body_size=self._options.max_body_size,
            commits=partial(self._is_own, process_queue) if self._commits_by_pull else lambda: False,
            lite=self._lite,
        )
        self._queues[queue] = process_queue, puller
        return process_queue

    def _moved(self, process_queue: ProcessQueue, offset: int) -> None:
        self._moves.start(self._go_on_at(process_queue, offset))

    async def _go_on_at(self, process_queue: ProcessQueue, offset: int) -> None:
        """The broker has nothing at the offset that was pulled, or an operator set another one."""
        queue, now = process_queue.queue, asyncio.get_running_loop().time()
        earliest = self._moved_at.get(queue, -inf) + MOVE_PAUSE_S
        self._moved_at[queue] = max(now, earliest)
        try:
            await asyncio.sleep(max(earliest - now, 0.0))
            if not process_queue.dropped:
                await (self.reset if self._commits else self.seek)(queue, offset)
        except GantryError as e:
            log.warning("%s can't go on at %d: %s", queue, offset, e)

    def take_anew(self, process_queue: ProcessQueue) -> None:
        """Another consumer has had its lock meanwhile: goes on where that one has got to."""
        self._moves.start(self._take_anew(process_queue))

    async def _take_anew(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        assert self._locks is not None
        async with self._changing:
            if process_queue.dropped:
                return
            try:
                offset = await self._first_offset(queue)
            except GantryError as e:
                log.warning("%s can't be taken anew: %s", queue, e)
                return
            await self._drop(queue)
            self.offset_store.forget(queue)
            self._locks.taken_anew(queue)
            self._pull(queue, offset)

    async def _first_offset(self, queue: MessageQueue) -> int:
        from_where = self._options.consume_from_where
        committed = await self.offset_store.read(queue, only_committed=decides_itself(from_where))
        if committed is not None:
            return committed
        topic, broker_name, queue_id = queue
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if from_where == CONSUME_FROM_FIRST_OFFSET or (is_retry and from_where != CONSUME_FROM_TIMESTAMP):
            return 0
        address = self._client.routes.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {broker_name}", broker_name)
        if from_where == CONSUME_FROM_TIMESTAMP and not is_retry:
            return await self._client.api.search_offset(
                address, topic, queue_id, self._options.consume_timestamp_ms, broker_name=broker_name
            )
        end = await self._client.api.max_offset(address, topic, queue_id, broker_name=broker_name)
        if end and not decides_itself(from_where):
            # The queue may have got its first message since the broker answered that it knows no offset.
            committed = await self.offset_store.read(queue, only_committed=False)
        return end if committed is None else committed

    async def _commit(self, *process_queues: ProcessQueue) -> None:
        try:
            await self.offset_store.commit(
                {held.queue: held.commit_offset for held in process_queues if self._is_own(held)}
            )
        except Exception as e:
            # Whatever it is (hooks are the user's): the offsets are committed again in 5 s, or by the next reader.
            what = " ".join([f"can't commit the offsets of group {self._group}", *_notes(e)])
            self._client.troubles.tell(what, e)

    async def _commit_last(self, *process_queues: ProcessQueue) -> None:
        """Commits what has not changed, too: this consumer won't repeat it, and a killed broker may have lost it."""
        for process_queue in process_queues:
            self.offset_store.forget(process_queue.queue)
        await self._commit(*process_queues)

    def _is_own(self, process_queue: ProcessQueue) -> bool:
        """What another consumer has had since may be further there."""
        return self._locks is None or not self._locks.was_lost(process_queue.queue)

    async def _commit_each(self) -> None:
        await self._commit(*self.process_queues)


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])
