"""AssignedQueues: the queues that a consumer reads at the moment: takes them, gives them up, commits their offsets.

Source: client/impl/consumer/RebalanceImpl (updateProcessQueueTableInRebalance), RebalancePushImpl
(computePullFromWhere).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.offset_store import OffsetStore
from gantrymq.client.periodic import repeat
from gantrymq.client.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.queue_puller import PULL_BATCH_SIZE, QueuePuller, Sink
from gantrymq.errors import ConnectFailed, GantryError
from gantrymq.protocol.heartbeat import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
    SubscriptionData,
)
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

log = logging.getLogger(__name__)

#: persistConsumerOffsetInterval.
COMMIT_INTERVAL_S = 5.0


@dataclass(slots=True, frozen=True)
class PullOptions:
    """How a consumer pulls.

    `consume_from_where` says where a group begins that has no offset yet: at the end, at the beginning or at the first
    message stored at `consume_timestamp_ms` (ms since the epoch). It has no say once an offset is committed.
    """

    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int = 0
    batch_size: int = PULL_BATCH_SIZE
    limits: FlowLimits = field(default_factory=FlowLimits)


class AssignedQueues:
    """Queues and their pullers. With `commits` the offsets are committed every 5 s and when a queue is given up."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: dict[str, SubscriptionData],
        sink: Sink,
        options: PullOptions,
        *,
        commits: bool,
        lite: bool,
    ) -> None:
        self.offset_store = OffsetStore(client, group)
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._sink = sink
        self._options = options
        self._commits = commits
        self._lite = lite
        self._queues: dict[MessageQueue, tuple[ProcessQueue, QueuePuller]] = {}
        self._committer = asyncio.create_task(repeat(COMMIT_INTERVAL_S, self._commit_each)) if commits else None

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._queues)

    async def assign(self, topic: str, queues: set[MessageQueue]) -> None:
        """Makes `queues` those of `topic` that are read. Raises when one couldn't be taken; the others are."""
        held = {queue for queue in self._queues if queue.topic == topic}
        await asyncio.gather(*(self.release(queue) for queue in held - queues))
        new = sorted(queues - held)
        if held != queues:
            log.info("group %s reads %d queues of %s: %s", self._group, len(queues), topic, sorted(queues))
        outcomes = await asyncio.gather(*(self._take(queue) for queue in new), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def release(self, queue: MessageQueue) -> None:
        """Stops reading a queue: what is not handled yet is left to its next reader."""
        process_queue, puller = self._queues.pop(queue)
        process_queue.dropped = True
        await puller.stop()
        if self._commits:
            await self._commit(process_queue)
        self.offset_store.forget(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on at `offset`; what was pulled before is dropped. The queue must be held."""
        process_queue, puller = self._queues.pop(queue)
        process_queue.dropped = True
        await puller.stop()
        self._pull(queue, offset)

    async def commit_all(self) -> None:
        """Commits the offsets of all queues; raises what the first failure was after all were tried."""
        held = [process_queue for process_queue, _ in self._queues.values()]
        outcomes = await asyncio.gather(
            *(self.offset_store.commit(process_queue.queue, process_queue.commit_offset) for process_queue in held),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def close(self, finish: Awaitable[None] | None = None) -> None:
        """Ends the pulls, awaits `finish`, in which what was pulled is dealt with, and commits."""
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.gather(self._committer, return_exceptions=True)
        await asyncio.gather(*(puller.stop() for _, puller in self._queues.values()))
        if finish is not None:
            await finish
        if self._commits:
            await self._commit_each()
        self._queues.clear()

    async def _take(self, queue: MessageQueue) -> None:
        self._pull(queue, await self._first_offset(queue))

    def _pull(self, queue: MessageQueue, offset: int) -> None:
        process_queue = ProcessQueue(queue, offset, self._options.limits)
        puller = QueuePuller(
            self._client,
            self._group,
            process_queue,
            self._subscriptions[queue.topic],
            self._sink,
            batch_size=self._options.batch_size,
            commits=self._commits,
            lite=self._lite,
        )
        self._queues[queue] = process_queue, puller

    async def _first_offset(self, queue: MessageQueue) -> int:
        committed = await self.offset_store.read(queue)
        if committed is not None:
            return committed
        topic, broker_name, queue_id = queue
        from_where = self._options.consume_from_where
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if from_where == CONSUME_FROM_FIRST_OFFSET or (is_retry and from_where == CONSUME_FROM_LAST_OFFSET):
            return 0
        address = self._client.routes.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {broker_name}", broker_name)
        if from_where == CONSUME_FROM_TIMESTAMP and not is_retry:
            return await self._client.api.search_offset(address, topic, queue_id, self._options.consume_timestamp_ms)
        return await self._client.api.max_offset(address, topic, queue_id)

    async def _commit(self, process_queue: ProcessQueue) -> None:
        try:
            await self.offset_store.commit(process_queue.queue, process_queue.commit_offset)
        except GantryError as e:
            log.warning("can't commit offset %d of %s: %s", process_queue.commit_offset, process_queue.queue, e)

    async def _commit_each(self) -> None:
        await asyncio.gather(*(self._commit(process_queue) for process_queue, _ in list(self._queues.values())))
