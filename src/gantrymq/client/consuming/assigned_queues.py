"""AssignedQueues: the queues that a consumer pulls. Assigns and revokes queues, and commits their offsets.

Source: client/impl/consumer/RebalanceImpl (updateProcessQueueTableInRebalance), RebalancePushImpl
(computePullFromWhere).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

from gantrymq.background.repeating import Repeating
from gantrymq.background.shared_task import result_of
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.consumer_context import ConsumerContext
from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.client.consuming.log_texts import queue_list
from gantrymq.client.consuming.offset_store import OffsetStore
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.queue_puller import QueuePuller, Sink
from gantrymq.client.consuming.start_position import EARLIEST, decides_itself
from gantrymq.client.lifecycle import Deadline
from gantrymq.errors import ClientError, ConnectFailed, GantryError, HeaderError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.times import timestamp_ms

log = peer_log(__name__)

#: Interval of commits (persistConsumerOffsetInterval), s.
COMMIT_INTERVAL_S = 5.0
#: Shortest time between two offset corrections of a queue, s.
MOVE_PAUSE_S = 1.0


class AssignedQueues:
    """The assigned queues and their pullers.

    Args:
        context: Shared objects of the consumer.
        sink: Receives the pulled messages.
        offset_store: Reads and commits offsets.
        commits: Commits the offsets every 5 s, when a queue is revoked and, unless the consumer broadcasts, with each
            pull.
        lite: If true, each pull contains the subscription.
        locks: If given, a queue is pulled only after the broker has locked it.
        finish: Awaited after a queue is dropped and before its offset is committed.
    """

    def __init__(
        self,
        context: ConsumerContext,
        sink: Sink,
        offset_store: OffsetStore,
        *,
        commits: bool,
        lite: bool,
        locks: ConsumerLocks | None = None,
        finish: Callable[[ProcessQueue], Awaitable[None]] | None = None,
    ) -> None:
        self.offset_store = offset_store
        self.statistics = context.statistics
        self._context = context
        self._client = context.client
        self._group = context.group
        self._sink = sink
        self._options = context.options
        self._assignment = context.assignment
        self._commits = commits
        # The offsets of a broadcasting consumer are in a file.
        self._commits_by_pull = commits and not context.options.broadcasting
        self._lite = lite
        self._locks = locks
        self._finish = finish
        self._queues: dict[MessageQueue, tuple[ProcessQueue, QueuePuller]] = {}
        #: Time of each queue's last offset correction (loop time, s).
        self._moved_at: dict[MessageQueue, float] = {}
        #: `ProcessQueue.topic_begin` of queues that were revoked, if their offsets outlive the topic: it may be deleted
        #: and created again before the queue is assigned again.
        self._topic_begins: dict[MessageQueue, int] = {}
        self._moves = Tasks(f"a queue of group {context.group} that goes on elsewhere")
        #: Locked while the queues change, so that a seek and a rebalance of one queue do not overlap.
        self._changing = asyncio.Lock()
        #: Each change of the queues runs in its own task, so that it is completed even if its caller is cancelled.
        self._changes: dict[asyncio.Task[None], None] = {}
        self._committer = Repeating(f"the commit of group {context.group}", self._commit_each, COMMIT_INTERVAL_S)
        if commits:
            self._committer.start()

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._queues)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        return [process_queue for process_queue, _ in self._queues.values()]

    def process_queue(self, queue: MessageQueue) -> ProcessQueue:
        """Returns the state of an assigned queue. Raises ClientError for another queue."""
        if queue not in self._queues:
            raise ClientError(f"{queue} is not assigned to this consumer")
        return self._queues[queue][0]

    async def assign(self, topic: str, queues: set[MessageQueue]) -> None:
        """Makes `queues` the assigned queues of `topic`. Adds as many as possible, then raises the first error."""
        await self._as_a_whole(self._assign(topic, queues))

    async def _assign(self, topic: str, queues: set[MessageQueue]) -> None:
        # Without the lock, because the callback may call `seek`.
        await self._assignment.revoked({queue for queue in self._queues if queue.topic == topic} - queues)
        async with self._changing:
            held = {queue for queue in self._queues if queue.topic == topic}
            if held != queues:
                log.info("group %s reads %d queues of %s: %s", self._group, len(queues), topic, queue_list(queues))
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
        """Continues a queue at `offset` and drops its pending messages. Raises ClientError if it is not assigned."""
        await self._as_a_whole(self._seek(queue, offset))

    async def _seek(self, queue: MessageQueue, offset: int) -> None:
        async with self._changing:
            paused = self.process_queue(queue).paused
            await self._drop(queue)
            self._pull(queue, offset).paused = paused

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Seeks and commits `offset`, which may be smaller than the committed one."""
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
        """Runs a change to its end, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes[task] = None
        task.add_done_callback(self._changed)
        await result_of(task)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._changes.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a change of the queues of group %s failed: %s", self._group, error)

    async def commit_all(self) -> None:
        """Commits the offsets of all queues. If some fail, raises the first error at the end."""
        await self.offset_store.commit(
            {held.queue: held.commit_offset for held in self.process_queues if self._is_own(held)}
        )

    async def stop(self) -> None:
        """Stops all pulls. Messages that are already pulled can still be handled."""
        await self._moves.stop()
        for change in self._changes:
            change.cancel()
        if self._changes:
            await asyncio.wait(self._changes)
        await self._committer.stop()
        await asyncio.gather(*(puller.stop() for _, puller in self._queues.values()))

    async def close(self, deadline: Deadline) -> None:
        """Commits the offsets and releases the locks within the deadline. Call `stop` first."""
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
        """Revokes a queue. The next owner of the queue receives the messages that are not handled."""
        process_queue = await self._drop(queue)
        if self._commits:
            await self._commit_last(process_queue)
        self.offset_store.forget(queue)
        self._moved_at.pop(queue, None)
        if self.offset_store.outlives_topics and process_queue.topic_begin is not None:
            self._topic_begins[queue] = process_queue.topic_begin
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
        subscription = self._context.subscriptions.get(queue.topic)
        if subscription is None:
            raise ClientError(f"topic {queue.topic} was unsubscribed meanwhile")
        process_queue = ProcessQueue(
            queue,
            offset,
            self._options.limits(),
            self.statistics.of(queue.topic),
            topic_begin=self._topic_begins.pop(queue, None),
        )
        puller = QueuePuller(
            self._context,
            process_queue,
            subscription,
            self._sink,
            self._moved,
            commits=partial(self._is_own, process_queue) if self._commits_by_pull else lambda: False,
            lite=self._lite,
        )
        self._queues[queue] = process_queue, puller
        return process_queue

    def _moved(self, process_queue: ProcessQueue, offset: int) -> None:
        self._moves.start(self._go_on_at(process_queue, offset))

    async def _go_on_at(self, process_queue: ProcessQueue, offset: int) -> None:
        """Corrects a queue's offset, because the broker has no message there or an operator reset the offset."""
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
        """Restarts a queue at the committed offset, because another consumer had the queue's lock in the meantime."""
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
        start_from = self._options.start_from
        committed = await self.offset_store.read(queue, only_committed=decides_itself(start_from))
        if committed is not None:
            return committed
        topic, broker_name, queue_id = queue
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if start_from == EARLIEST or (is_retry and not isinstance(start_from, datetime)):
            return 0
        address = self._client.routes.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {broker_name}", broker_name)
        if isinstance(start_from, datetime) and not is_retry:
            return await self._client.api.search_offset(
                address, topic, queue_id, timestamp_ms("start_from", start_from), broker_name=broker_name
            )
        end = await self._client.api.max_offset(address, topic, queue_id, broker_name=broker_name)
        if end and not decides_itself(start_from):
            # The first message may have arrived after the broker answered that the group has no offset.
            committed = await self.offset_store.read(queue, only_committed=False)
        return end if committed is None else committed

    async def _commit(self, *process_queues: ProcessQueue) -> None:
        try:
            await self.offset_store.commit(
                {held.queue: held.commit_offset for held in process_queues if self._is_own(held)}
            )
        except Exception as e:
            # Any error, because hooks are user code. A later commit, or the queue's next owner, commits again.
            what = " ".join([f"can't commit the offsets of group {self._group}", *_notes(e)])
            self._client.failure_log.report(what, e)

    async def _commit_last(self, *process_queues: ProcessQueue) -> None:
        """Commits all offsets, also unchanged ones, because a broker that was killed may have lost the last commit."""
        for process_queue in process_queues:
            self.offset_store.forget(process_queue.queue)
        await self._commit(*process_queues)

    def _is_own(self, process_queue: ProcessQueue) -> bool:
        """Returns false if another consumer had the lock in the meantime, and may have committed a larger offset."""
        return self._locks is None or not self._locks.was_lost(process_queue.queue)

    async def _commit_each(self) -> None:
        await self._commit(*self.process_queues)


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])
