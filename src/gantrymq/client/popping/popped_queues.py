"""PoppedQueues: queues whose messages are popped for a push consumer's handler, acknowledged or made to come again.

Source: client/impl/consumer/DefaultMQPushConsumerImpl (popMessage, processPopResult), PopProcessQueue,
ConsumeMessagePopConcurrentlyService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, cast

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assignment import Assignment
from gantrymq.client.consuming.consume_statistics import ConsumeStatistics, TopicCounters
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool, is_coroutine_handler
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.lifecycle import Deadline
from gantrymq.client.popping.pop_api import PopApi, handle_of
from gantrymq.errors import ClientClosed, ClientError, GantryError, IllegalMessage
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.consumer import PopProcessQueueInfo
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET, EXPRESSION_TAG, SubscriptionData
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, INIT_FROM_MIN, PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.system import clock

log = peer_log(__name__)

#: BROKER_SUSPEND_MAX_TIME_MILLIS: how long the broker waits for a message to come.
POLL_MS = 15_000
#: The pause after a failed pop.
RETRY_DELAY_S = 1.0
#: popDelayLevel: after so many seconds a message comes again, by how often it came before.
RETRY_AFTER_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(slots=True, frozen=True)
class PopOptions:
    """How a push consumer pops (`DefaultMQPushConsumer`).

    A message that is not handled in `invisible_ms`, 5 s to 300 s, comes again. `batch_size` is the most of one pop, 1
    to 32; with more than `max_messages` of a queue in hand nothing is popped from it.
    """

    #: popInvisibleTime.
    invisible_ms: int = 60_000
    #: popBatchNums.
    batch_size: int = 32
    #: popThresholdForQueue.
    max_messages: int = 96

    def __post_init__(self) -> None:
        if not 5000 <= self.invisible_ms <= 300_000:
            raise ClientError(f"invisible_ms {self.invisible_ms}: 5000 to 300000 are possible")
        if not 1 <= self.batch_size <= 32:
            raise ClientError(f"batch_size {self.batch_size}: 1 to 32 are possible")


class PopProcessQueue:
    """A queue that is popped; `waiting` counts its messages that are not acknowledged yet."""

    def __init__(self, queue: MessageQueue, counters: TopicCounters) -> None:
        self.queue = queue
        self.counters = counters
        self.dropped = False
        self.last_consume = 0.0
        self.last_pop = 0.0
        self.waiting = 0
        self.short_polls = ShortPolls()
        #: Called when one message less waits.
        self.on_room: Callable[[], None] | None = None

    def taken(self) -> None:
        """One message less waits."""
        self.waiting -= 1
        if self.on_room is not None:
            on_room, self.on_room = self.on_room, None
            on_room()


class PoppedQueues:
    """The popped queues of a push consumer, each popped by a job of its own."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        handler: MessageHandler,
        concurrency: int,
        options: PopOptions,
        max_body_size: int,
        consume_from_where: str,
        max_reconsume_times: int,
        prepare: Callable[[Sequence[MessageExt]], None],
        statistics: ConsumeStatistics,
        assignment: Assignment,
    ) -> None:
        """`prepare` is called with what was popped, before the handler."""
        self.pool: HandlerPool = handler_pool(_in_time(handler), concurrency, self._handled)
        self._client = client
        self._api = PopApi(client, group, max_body_size)
        self._subscriptions = subscriptions
        self._options = options
        self._init_mode = INIT_FROM_MIN if consume_from_where == CONSUME_FROM_FIRST_OFFSET else INIT_FROM_MAX
        self._max_reconsume_times = max_reconsume_times
        self._prepare = prepare
        self._statistics = statistics
        self._assignment = assignment
        self._queues: dict[MessageQueue, tuple[PopProcessQueue, Repeating]] = {}
        self._answers = Tasks(f"an answer of group {group} about a popped message")

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._queues)

    def info(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """For an operator who asks."""
        return {
            queue: PopProcessQueueInfo(held.waiting, held.dropped, round(held.last_pop * 1000))
            for queue, (held, _) in sorted(self._queues.items())
        }

    async def assign(self, topic: str, queues: set[MessageQueue]) -> None:
        """Makes `queues` those of `topic` that are popped."""
        held = {queue for queue in self._queues if queue.topic == topic}
        await self._assignment.revoked(held - queues)
        await self._stop(held - queues)
        for queue in queues - held:
            process_queue = PopProcessQueue(queue, self._statistics.of(topic))
            # Whatever a pop raises, there is another.
            job = Repeating(f"popping {queue}", partial(self._next, process_queue), after_error_s=RETRY_DELAY_S)
            self._queues[queue] = process_queue, job
            job.start(0.0)
        await self._assignment.assigned(queues - held)

    async def close(self, deadline: Deadline) -> None:
        """Waits for handlers and answers until then; what isn't acknowledged comes again."""
        try:
            await asyncio.gather(*(job.stop() for _, job in self._queues.values()))
            await self.pool.close(deadline.left())
            async with asyncio.timeout(deadline.left()):
                await self._answers.wait()
        except TimeoutError:
            log.warning("%d popped messages come again: nobody took the answers in time", len(self._answers))
        finally:
            await self._answers.stop()
            revoked = self.queues
            self._queues.clear()
            await self._assignment.revoked(revoked)

    async def _stop(self, queues: set[MessageQueue]) -> None:
        jobs = []
        for queue in queues:
            process_queue, job = self._queues.pop(queue)
            process_queue.dropped = True
            jobs.append(job)
        await asyncio.gather(*(job.stop() for job in jobs))

    async def _next(self, process_queue: PopProcessQueue) -> float:
        """One pop; how long to wait until the next, s."""
        if process_queue.waiting > self._options.max_messages:
            process_queue.on_room = self._queues[process_queue.queue][1].wake
            return inf
        try:
            return await self._pop(process_queue)
        except ClientClosed:
            return inf
        except GantryError as e:
            topic, broker_name, _ = process_queue.queue
            self._client.troubles.tell(f"can't pop {process_queue.queue}", e)
            return await self._client.recover(topic, broker_name, e, RETRY_DELAY_S)

    async def _pop(self, process_queue: PopProcessQueue) -> float:
        topic, broker_name, queue_id = process_queue.queue
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            raise ClientError(f"topic {topic} was unsubscribed meanwhile")
        process_queue.last_pop = started = clock.time()
        header = PopMessageRequestHeader(
            consumer_group=self._api.group,
            topic=topic,
            queue_id=queue_id,
            max_msg_nums=self._options.batch_size,
            invisible_time=self._options.invisible_ms,
            poll_time=POLL_MS,
            born_time=round(started * 1000),
            init_mode=self._init_mode,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            bname=broker_name,
        )
        popped = await self._api.pop(broker_name, header)
        wanted = [message for message in popped if self._is_wanted(message, subscription)]
        for message in popped:
            if message not in wanted:
                self._answer(self._api.ack(message, topic), message)
        if wanted:
            counters = process_queue.counters
            counters.pulls += 1
            counters.pull_s += clock.time() - started
            counters.pulled += len(wanted)
            self._prepare(wanted)
            process_queue.waiting += len(wanted)
            self.pool.submit(process_queue, wanted)
        return process_queue.short_polls.pause(bool(popped), clock.time() - started)

    def _is_wanted(self, message: MessageExt, subscription: SubscriptionData) -> bool:
        # The broker compares hash codes only: other tags may have the same one.
        by_tags = subscription.tags_set and subscription.expression_type == EXPRESSION_TAG
        if by_tags and message.tags not in subscription.tags_set:
            return False
        return message.reconsume_times <= self._max_reconsume_times

    def _handled(self, process_queue: PopProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        process_queue.taken()
        # Whoever has the queue by now: the receipt handle is this consumer's.
        topic = process_queue.queue.topic
        if _is_visible_again(message):
            log.warning("%s took more than its invisible time, it comes again: %s", message.msg_id, error or "handled")
        elif error is None:
            self._answer(self._api.ack(message, topic), message)
        else:
            log.warning("handler failed on %s, which comes again", message.msg_id, exc_info=error)
            delay_s = retry_after(message, self._max_reconsume_times, clock.time())
            if delay_s is None:
                log.warning("%s was tried for hours: it is given up", message.msg_id)
                self._answer(self._api.ack(message, topic), message)
            else:
                self._answer(self._api.change_invisible_time(message, topic, delay_s * 1000), message)

    def _answer(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        self._answers.start(self._answered(request, message))

    async def _answered(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        try:
            await request
        except GantryError as e:
            log.warning("the broker wasn't told of %s, which comes again: %s", message.msg_id, e)


def retry_after(message: MessageExt, max_reconsume_times: int, now: float) -> int | None:
    """After how many seconds a message that failed comes again; None: it has failed too often and for too long."""
    if message.reconsume_times < max_reconsume_times:
        return RETRY_AFTER_S[min(message.reconsume_times, len(RETRY_AFTER_S) - 1)]
    age_s = now - message.born_timestamp / 1000
    if age_s > 2 * RETRY_AFTER_S[-1]:
        return None
    return next((seconds for seconds in RETRY_AFTER_S if seconds > age_s), RETRY_AFTER_S[-1])


def _is_visible_again(message: MessageExt) -> bool:
    try:
        handle = handle_of(message)
    except IllegalMessage:
        return False  # The handler took it away; the acknowledgement will say so.
    return clock.time() * 1000 >= handle.pop_time + handle.invisible_time


def _in_time(handler: MessageHandler) -> MessageHandler:
    """A handler of the same kind that refuses what others may have popped meanwhile."""

    def check(message: MessageExt) -> None:
        if _is_visible_again(message):
            raise ClientError("it waited longer than its invisible time")

    async def handle_in_task(message: MessageExt) -> None:
        check(message)
        await cast(Callable[[MessageExt], Awaitable[object]], handler)(message)

    def handle_in_thread(message: MessageExt) -> object:
        check(message)
        return handler(message)

    return handle_in_task if is_coroutine_handler(handler) else handle_in_thread
