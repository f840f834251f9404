"""PoppedQueues: pops queues for the handler of a push consumer, and acknowledges messages or delays their redelivery.

Source: client/impl/consumer/DefaultMQPushConsumerImpl (popMessage, processPopResult), PopProcessQueue,
ConsumeMessagePopConcurrentlyService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, cast

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.client.consuming.consumer_context import ConsumerContext
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool, is_coroutine_handler
from gantrymq.client.consuming.log_texts import failed_attempt
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.consuming.start_position import EARLIEST
from gantrymq.client.lifecycle import Deadline
from gantrymq.client.options import Options, documented, duration, option
from gantrymq.client.popping.pop_api import PopApi, handle_of
from gantrymq.errors import ClientClosed, ClientError, GantryError, IllegalMessage
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.consumer import PopProcessQueueInfo
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SubscriptionData
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, INIT_FROM_MIN, PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.system import clock
from gantrymq.times import duration_ms

log = peer_log(__name__)

#: Longest time that the broker waits for a message (BROKER_SUSPEND_MAX_TIME_MILLIS), ms.
POLL_MS = 15_000
#: Pause after a failed pop, s.
RETRY_DELAY_S = 1.0
#: Delay before each redelivery, by the number of earlier redeliveries (popDelayLevel), s.
RETRY_AFTER_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@documented
@dataclass(slots=True, frozen=True)
class PopOptions(Options):
    """How a push consumer pops (`DefaultMQPushConsumer`)."""

    invisible_time: float | timedelta = duration(
        60.0,
        "A message that is not handled in this time is redelivered, in seconds (popInvisibleTime).",
        minimum=5,
        maximum=300,
    )
    batch_size: int = option(32, "Most messages of one pop (popBatchNums).", minimum=1, maximum=32)
    max_messages: int = option(
        96, "With more messages of a queue in flight, nothing is popped from it (popThresholdForQueue)."
    )


class PopProcessQueue:
    """A popped queue. `waiting` is the number of its messages in flight."""

    def __init__(self, queue: MessageQueue, counters: TopicCounters) -> None:
        self.queue = queue
        self.counters = counters
        self.dropped = False
        self.last_consume = 0.0
        self.last_pop = 0.0
        self.waiting = 0
        self.short_polls = ShortPolls()
        #: Called once when the next message is handled.
        self._on_handled: Callable[[], None] | None = None

    def when_handled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the next message is handled. Replaces an earlier callback."""
        self._on_handled = callback

    def handled(self) -> None:
        """Records that a message is handled."""
        self.waiting -= 1
        if self._on_handled is not None:
            callback, self._on_handled = self._on_handled, None
            callback()


class PoppedQueues:
    """The popped queues of a push consumer. Each one has its own job.

    Args:
        context: Shared objects of the consumer.
        options: How queues are popped.
        handler: Called with each message, with up to `concurrency` at the same time.
        prepare: Called with popped messages before the handler.
        concurrency: Messages that are handled at the same time.
        max_reconsume_times: Retries of a message.
    """

    def __init__(
        self,
        context: ConsumerContext,
        options: PopOptions,
        handler: MessageHandler,
        prepare: Callable[[Sequence[MessageExt]], None],
        *,
        concurrency: int,
        max_reconsume_times: int,
    ) -> None:
        self.pool: HandlerPool = handler_pool(in_time(handler), concurrency, self._handled)
        self._client = context.client
        self._api = PopApi(context.client, context.group, context.options.max_body_size)
        self._subscriptions = context.subscriptions
        self._options = options
        self._invisible_ms = duration_ms("invisible_time", options.invisible_time)
        from_first = context.options.start_from == EARLIEST
        self._init_mode = INIT_FROM_MIN if from_first else INIT_FROM_MAX
        self._max_reconsume_times = max_reconsume_times
        self._prepare = prepare
        self._statistics = context.statistics
        self._assignment = context.assignment
        self._queues: dict[MessageQueue, tuple[PopProcessQueue, Repeating]] = {}
        self._acknowledgements = Tasks(f"an acknowledgement of group {context.group}")

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._queues)

    def info(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Returns the state of the queues for an operator's request."""
        return {
            queue: PopProcessQueueInfo(held.waiting, held.dropped, round(held.last_pop * 1000))
            for queue, (held, _) in sorted(self._queues.items())
        }

    async def assign(self, topic: str, queues: set[MessageQueue]) -> None:
        """Makes `queues` the popped queues of `topic`."""
        held = {queue for queue in self._queues if queue.topic == topic}
        await self._assignment.revoked(held - queues)
        await self._stop(held - queues)
        for queue in queues - held:
            process_queue = PopProcessQueue(queue, self._statistics.of(topic))
            # The job repeats pops after any error.
            job = Repeating(f"popping {queue}", partial(self._next, process_queue), after_error_s=RETRY_DELAY_S)
            self._queues[queue] = process_queue, job
            job.start(0.0)
        await self._assignment.assigned(queues - held)

    async def close(self, deadline: Deadline) -> None:
        """Waits for handlers and acknowledgements until the deadline. Other messages are redelivered."""
        try:
            await asyncio.gather(*(job.stop() for _, job in self._queues.values()))
            await self.pool.close(deadline.left())
            async with asyncio.timeout(deadline.left()):
                await self._acknowledgements.wait()
        except TimeoutError:
            log.warning(
                "%d messages are redelivered: no response to acknowledgements in time", len(self._acknowledgements)
            )
        finally:
            await self._acknowledgements.stop()
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
        """Makes one pop. Returns the pause before the next one, in seconds."""
        if process_queue.waiting > self._options.max_messages:
            process_queue.when_handled(self._queues[process_queue.queue][1].wake)
            return inf
        try:
            return await self._pop(process_queue)
        except ClientClosed:
            return inf
        except GantryError as e:
            topic, broker_name, _ = process_queue.queue
            self._client.failure_log.report(f"can't pop {process_queue.queue}", e)
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
            invisible_time=self._invisible_ms,
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
                self._acknowledge_later(self._api.ack(message, topic), message)
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
        # The broker compares hash codes of tags, and different tags can have the same hash code.
        by_tags = subscription.tags_set and subscription.expression_type == EXPRESSION_TAG
        if by_tags and message.tags not in subscription.tags_set:
            return False
        return message.reconsume_times <= self._max_reconsume_times

    def _handled(self, process_queue: PopProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        process_queue.handled()
        # Acknowledges even if the queue is revoked, because the receipt handle belongs to this consumer.
        topic = process_queue.queue.topic
        if is_visible_again(message):
            log.warning(
                "handler took more than the invisible duration: %s; the broker redelivers it (result: %s)",
                failed_attempt(message),
                error or "handled",
            )
        elif error is None:
            self._acknowledge_later(self._api.ack(message, topic), message)
        else:
            delay_s = retry_after(message, self._max_reconsume_times, clock.time())
            following = "given up: too old for another attempt" if delay_s is None else f"next attempt in {delay_s} s"
            log.warning("handler failed: %s; %s", failed_attempt(message), following, exc_info=error)
            if delay_s is None:
                self._acknowledge_later(self._api.ack(message, topic), message)
            else:
                self._acknowledge_later(self._api.change_invisible_time(message, topic, delay_s * 1000), message)

    def _acknowledge_later(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        self._acknowledgements.start(self._acknowledge(request, message))

    async def _acknowledge(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        try:
            await request
        except GantryError as e:
            log.warning("can't acknowledge message %s, which is redelivered: %s", message.msg_id, e)


def retry_after(message: MessageExt, max_reconsume_times: int, now: float) -> int | None:
    """Returns the delay before a failed message is redelivered, in seconds; None if there are no more retries."""
    if message.reconsume_times < max_reconsume_times:
        return RETRY_AFTER_S[min(message.reconsume_times, len(RETRY_AFTER_S) - 1)]
    age_s = now - message.born_timestamp / 1000
    if age_s > 2 * RETRY_AFTER_S[-1]:
        return None
    return next((seconds for seconds in RETRY_AFTER_S if seconds > age_s), RETRY_AFTER_S[-1])


def is_visible_again(message: MessageExt) -> bool:
    """Returns whether the invisible duration of a popped message has ended."""
    try:
        handle = handle_of(message)
    except IllegalMessage:
        return False  # The handler removed the receipt handle; the acknowledgement logs this fault.
    return clock.time() * 1000 >= handle.pop_time + handle.invisible_time


def in_time(handler: MessageHandler) -> MessageHandler:
    """Wraps a handler. Raises if the invisible duration has ended: another consumer may have the message."""

    def check(message: MessageExt) -> None:
        if is_visible_again(message):
            raise ClientError("it waited longer than its invisible time")

    async def handle_in_task(message: MessageExt) -> None:
        check(message)
        await cast(Callable[[MessageExt], Awaitable[object]], handler)(message)

    def handle_in_thread(message: MessageExt) -> object:
        check(message)
        return handler(message)

    return handle_in_task if is_coroutine_handler(handler) else handle_in_thread
