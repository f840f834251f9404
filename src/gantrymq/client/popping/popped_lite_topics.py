"""PoppedLiteTopics: pops lite topics for the handler of a LitePushConsumer, and acknowledges the messages.

A pop returns messages of several lite topics. Those of one lite topic are a `LiteBatch`: they reach the handler one
after the other. If one of them fails, the broker redelivers it and those after it, so that their order stays.
Source: client-java LiteFifoConsumeService.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.log_texts import failed_attempt
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.lifecycle import Deadline
from gantrymq.client.popping.lite_consumer import LiteParts
from gantrymq.client.popping.popped_queues import POLL_MS, RETRY_DELAY_S, PopOptions, in_time, is_visible_again
from gantrymq.errors import BrokerError, ClientClosed, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from gantrymq.system import clock
from gantrymq.system.clock import now_ms
from gantrymq.times import duration_ms

log = peer_log(__name__)

#: Interval of the search for brokers of the parent topic, in seconds. A change of the route starts it at once.
_BROKERS_S = 30.0


class LiteBatch:
    """The messages of one lite topic in a pop: the source of a handler pool. `waiting` has those not handled yet."""

    def __init__(self, queue: MessageQueue, counters: TopicCounters, messages: Sequence[MessageExt]) -> None:
        self.queue = queue
        self.counters = counters
        self.dropped = False
        self.last_consume = 0.0
        self.waiting = deque(messages)


class PoppedLiteTopics:
    """Pops from each broker of the parent topic, with a job for each broker.

    Args:
        parts: The parts of the consumer.
        topic: Parent topic, with its namespace.
        options: How lite topics are popped.
        handler: Called with each message.
        concurrency: Number of lite topics whose messages are handled at the same time.
        suspend_ms: Time until a failed message is redelivered, in ms.
        prepare: Called with popped messages before the handler.
    """

    def __init__(
        self,
        parts: LiteParts,
        topic: str,
        options: PopOptions,
        *,
        handler: MessageHandler,
        concurrency: int,
        suspend_ms: int,
        prepare: Callable[[Sequence[MessageExt]], None],
    ) -> None:
        self.pool: HandlerPool = handler_pool(in_time(handler), concurrency, self._handled)
        self._client = parts.client
        self._api = parts.api
        self._lite_subscriptions = parts.subscriptions
        self._topic = topic
        self._options = options
        self._invisible_ms = duration_ms("invisible_time", options.invisible_time)
        self._suspend_ms = suspend_ms
        self._prepare = prepare
        self._counters = TopicCounters()
        self._brokers: dict[str, Repeating] = {}
        #: Number of messages in flight.
        self._count = 0
        #: Enough messages in flight for `concurrency` lite topics, because a pop can be full of one lite topic.
        self._most = max(options.max_messages, concurrency * options.batch_size)
        #: The brokers whose jobs wait until fewer messages are in flight.
        self._paused: dict[str, None] = {}
        self._acknowledgements = Tasks(f"an acknowledgement of group {self._api.group} for a lite topic")
        self._finding = Repeating(f"finding brokers of {topic}", self._find_brokers, _BROKERS_S)
        self._client.routes.watch(self._route_changed)

    def start(self) -> None:
        self._finding.start(0.0)

    async def close(self, deadline: Deadline) -> None:
        """Waits for handlers and acknowledgements until the deadline. Other messages are redelivered."""
        await self._finding.stop()
        try:
            await asyncio.gather(*(job.stop() for job in self._brokers.values()))
            await self.pool.close(deadline.left())
            async with asyncio.timeout(deadline.left()):
                await self._acknowledgements.wait()
        except TimeoutError:
            count = len(self._acknowledgements)
            log.warning("%d messages are redelivered: no response to acknowledgements in time", count)
        finally:
            await self._acknowledgements.stop()
            self._brokers.clear()

    def _route_changed(self, topic: str) -> None:
        if topic == self._topic:
            self._finding.wake()

    async def _find_brokers(self) -> float:
        """Starts a job for each new broker of the topic, and stops those of brokers that have left.

        Returns the pause before the next search, in seconds.
        """
        try:
            names = await self._lite_subscriptions.broker_names()
        except GantryError as e:
            self._client.failure_log.report(f"can't find the brokers of topic {self._topic}", e)
            return RETRY_DELAY_S
        gone = [self._brokers.pop(name) for name in list(self._brokers) if name not in names]
        await asyncio.gather(*(job.stop() for job in gone))
        for name in names:
            if name not in self._brokers:
                job = Repeating(
                    f"popping lite topics of {self._topic} from {name}",
                    partial(self._next, name, ShortPolls()),
                    after_error_s=RETRY_DELAY_S,
                )
                self._brokers[name] = job
                job.start(0.0)
        return _BROKERS_S

    async def _next(self, broker_name: str, short_polls: ShortPolls) -> float:
        """Makes one pop. Returns the pause before the next one, in seconds."""
        if self._count > self._most:
            self._paused[broker_name] = None
            return inf
        began = clock.monotonic()
        self._lite_subscriptions.check(broker_name)
        header = PopLiteMessageRequestHeader(
            client_id=self._client.client_id,
            consumer_group=self._api.group,
            topic=self._topic,
            max_msg_num=self._options.batch_size,
            invisible_time=self._invisible_ms,
            poll_time=POLL_MS,
            born_time=now_ms(),
            bname=broker_name,
        )
        try:
            messages = await self._api.pop_lite(broker_name, header)
        except ClientClosed:
            return inf
        except GantryError as e:
            if isinstance(e, BrokerError):
                self._lite_subscriptions.pop_failed(broker_name)
            self._client.failure_log.report(f"can't pop lite topics of {self._topic} from broker {broker_name}", e)
            return await self._client.recover(self._topic, broker_name, e, RETRY_DELAY_S)
        self._take(broker_name, messages)
        return short_polls.pause(bool(messages), clock.monotonic() - began)

    def _take(self, broker_name: str, messages: list[MessageExt]) -> None:
        """Passes the first message of each lite topic to the handler."""
        by_lite_topic: dict[str | None, list[MessageExt]] = {}
        for message in messages:
            by_lite_topic.setdefault(message.lite_topic, []).append(message)
        self._prepare(messages)
        self._count += len(messages)
        queue = MessageQueue(self._topic, broker_name, LIGHT_QUEUE_ID)
        for of_one in by_lite_topic.values():
            batch = LiteBatch(queue, self._counters, of_one)
            self.pool.submit(batch, [batch.waiting.popleft()])

    def _handled(self, batch: LiteBatch, message: MessageExt, error: BaseException | None) -> None:
        self._count -= 1
        if is_visible_again(message):
            log.warning(
                "not handled within its invisible duration: %s; the broker redelivers it (result: %s)",
                failed_attempt(message),
                error or "handled",
            )
            self._drop(batch)
        elif error is not None:
            log.warning(
                "handler failed: %s; next attempt in %g s",
                failed_attempt(message),
                self._suspend_ms / 1000,
                exc_info=error,
            )
            # The broker redelivers when all of them are visible again.
            for one in [message, *batch.waiting]:
                change = self._api.change_invisible_time(one, self._topic, self._suspend_ms, one.lite_topic)
                self._acknowledge_later(change, one)
            self._drop(batch)
        else:
            self._acknowledge_later(self._api.ack(message, self._topic, message.lite_topic), message)
            if batch.waiting:
                self.pool.submit(batch, [batch.waiting.popleft()])
        if self._count <= self._most:
            while self._paused:
                broker_name, _ = self._paused.popitem()
                if broker_name in self._brokers:
                    self._brokers[broker_name].wake()

    def _drop(self, batch: LiteBatch) -> None:
        batch.dropped = True
        self._count -= len(batch.waiting)
        batch.waiting.clear()

    def _acknowledge_later(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        self._acknowledgements.start(self._acknowledge(request, message))

    async def _acknowledge(self, request: Coroutine[Any, Any, None], message: MessageExt) -> None:
        try:
            await request
        except GantryError as e:
            log.warning("can't acknowledge message %s, which is redelivered: %s", message.msg_id, e)
