"""ConsumerRelay: handles the operators' requests that a broker forwards to a consumer.

Source: client/impl/ClientRemotingProcessor, MQClientInstance (resetOffset, getConsumerStatus, consumerRunningInfo),
ConsumeMessageConcurrentlyService (consumeMessageDirectly).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues
from gantrymq.client.consuming.consume_statistics import SAMPLE_INTERVAL_S, TopicCounters
from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.log_texts import failed_attempt
from gantrymq.client.namespace import without_namespace
from gantrymq.client.popping.popped_queues import PoppedQueues
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies import consumer as bodies
from gantrymq.protocol.bodies.consumer import ConsumeMessageDirectlyResult, ConsumerRunningInfo, ConsumeStatus
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.offset import ConsumerStatusBody, ResetOffsetBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from gantrymq.protocol.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import RETRY_TOPIC
from gantrymq.protocol.record import decode_record
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system import clock
from gantrymq.system.clock import now_ms

log = peer_log(__name__)


#: Called with the rates and failures of each topic.
StatisticsCallback = Callable[[dict[str, ConsumeStatus]], object]


class Consumer(NamedTuple):
    """The parts of a consumer that the relay uses. A consumer without a handler has no pool."""

    client: ClientInstance
    subscriptions: Mapping[str, SubscriptionData]
    queues: AssignedQueues
    popped: PoppedQueues | None = None
    locks: ConsumerLocks | None = None
    pool: HandlerPool | None = None
    handler: MessageHandler | None = None


class ConsumerRelay:
    """Handles requests for one consumer of `group`, between `attach` and `close`."""

    def __init__(
        self,
        group: str,
        namespace: str,
        consume_type: str,
        orderly: bool = False,
        on_statistics: StatisticsCallback | None = None,
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._consume_type = consume_type
        self._orderly = orderly
        self._on_statistics = on_statistics
        self._started_ms = now_ms()
        self._consumer: Consumer | None = None
        self._sampler = Repeating(f"the statistics of group {group}", self._sample, SAMPLE_INTERVAL_S)
        #: The pool that runs the handler on messages that an operator sends.
        self._direct: HandlerPool | None = None
        self._resets = Tasks(f"a reset of the offsets of group {group}")
        #: New offset of each queue to reset. The last request wins.
        self._to_reset: dict[MessageQueue, int] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def attach(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._sampler.start()

    async def close(self) -> None:
        self._consumer = None
        await self._sampler.stop()
        await self._resets.stop()
        if self._direct is not None:
            await self._direct.close(0.0)
            self._direct = None

    def reset_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Resets the offsets of this consumer's queues to those in the body. Sends no response."""
        header = request.read_header(ResetOffsetRequestHeader)
        consumer = self._attached(header.group)
        offsets = ResetOffsetBody.decode(request.body).offset_table if request.body else {}
        mine = {
            queue: offset
            for queue, offset in offsets.items()
            if queue.topic == header.topic and queue in consumer.queues.queues
        }
        resets = ", ".join(f"{of.broker_name} {of.queue_id} to {offset}" for of, offset in sorted(mine.items()))
        log.info("offsets of group %s in topic %s are reset: %s", header.group, header.topic, resets or "none")
        for queue, offset in mine.items():
            if offset < 0:
                log.warning("%s isn't reset to %d: offsets begin at 0", queue, offset)
                continue
            if queue not in self._to_reset:
                self._resets.start(self._reset(consumer.queues, queue))
            self._to_reset[queue] = offset
        return None

    def status(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the offset to commit of each queue of the topic."""
        header = request.read_header(GetConsumerStatusRequestHeader)
        held = self._attached(header.group).queues.process_queues
        table = {pq.queue: pq.commit_offset for pq in held if pq.queue.topic == header.topic}
        return RemotingCommand.response(body=ConsumerStatusBody(message_queue_table=table).encode())

    def running_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns queues, rates and settings. If requested, also returns the stacks of the handlers."""
        header = request.read_header(GetConsumerRunningInfoRequestHeader)
        consumer = self._attached(header.consumer_group)
        info = ConsumerRunningInfo(
            properties=self._properties(consumer),
            subscription_set=sorted(consumer.subscriptions.values(), key=lambda subscription: subscription.topic),
            status_table={topic: consumer.queues.statistics.status(topic) for topic in consumer.subscriptions},
        )
        for process_queue in sorted(consumer.queues.process_queues, key=lambda process_queue: process_queue.queue):
            info.mq_table[process_queue.queue] = row = process_queue.info()
            if consumer.locks is not None:
                row.locked = consumer.locks.holds(process_queue.queue)
                row.last_lock_timestamp = round(consumer.locks.last_locked(process_queue.queue) * 1000)
        if consumer.popped is not None:
            info.mq_pop_table = consumer.popped.info()
        if header.jstack_enable:
            pools = [pool for pool in (consumer.pool, consumer.popped and consumer.popped.pool) if pool]
            info.jstack = "\n".join(pool.stacks() for pool in pools)
        return RemotingCommand.response(body=info.encode())

    def consume_directly(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Runs the handler on the message in the body. The result changes neither offsets nor retries."""
        header = request.read_header(ConsumeMessageDirectlyResultRequestHeader)
        handler = self._attached(header.consumer_group).handler
        if handler is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"consumers of group {self._group} have no handler to call")
        message = MessageExt(decode_record(request.body), header.broker_name or "")
        if message.topic.startswith(RETRY_TOPIC_PREFIX):
            message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        message.topic = without_namespace(message.topic, self._namespace)
        if self._direct is None:
            # Handles one such message at a time, in addition to the normal consumption.
            self._direct = handler_pool(handler, 1, _handled)
        connection.respond_with(request, self._consume(self._direct, message))
        return None

    async def _consume(self, pool: HandlerPool, message: MessageExt) -> RemotingCommand:
        started = clock.monotonic()
        source = _Directly(message.message_queue)
        pool.submit(source, [message])
        try:
            error = await source.done
        finally:
            # Makes the pool skip the message if the request was cancelled.
            source.dropped = True
        if error is not None:
            log.warning(
                "handler failed: %s; an operator's request, not retried", failed_attempt(message), exc_info=error
            )
        result = ConsumeMessageDirectlyResult(
            order=self._orderly,
            consume_result=bodies.CR_SUCCESS if error is None else bodies.CR_THROW_EXCEPTION,
            remark=None if error is None else f"{type(error).__name__}: {error}",
            spent_time_mills=round(1000 * (clock.monotonic() - started)),
        )
        return RemotingCommand.response(body=encode_json(result))

    async def _reset(self, queues: AssignedQueues, queue: MessageQueue) -> None:
        offset = None
        while offset != self._to_reset[queue]:
            offset = self._to_reset[queue]
            try:
                await queues.reset(queue, offset)
            except GantryError as e:
                log.warning("can't reset the offset of %s to %d: %s", queue, offset, e)
        del self._to_reset[queue]

    def _sample(self) -> None:
        if self._consumer is None:
            return
        statistics = self._consumer.queues.statistics
        statistics.sample()
        if self._on_statistics is not None:
            # An error of the callback is logged as a failure of the job.
            self._on_statistics(
                {
                    without_namespace(topic, self._namespace): statistics.status(topic)
                    for topic in self._consumer.subscriptions
                    if not topic.startswith(RETRY_TOPIC_PREFIX)
                }
            )

    def _attached(self, group: str) -> Consumer:
        if self._consumer is None or group != self._group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
        return self._consumer

    def _properties(self, consumer: Consumer) -> dict[str, str]:
        # Imported here, because it takes long to import.
        from importlib.metadata import version

        return {
            "consumerGroup": self._group,
            bodies.PROP_NAMESERVER_ADDR: ";".join(consumer.client.routes.name_servers),
            bodies.PROP_CONSUME_TYPE: self._consume_type,
            bodies.PROP_CONSUME_ORDERLY: "true" if self._orderly else "false",
            bodies.PROP_THREADPOOL_CORE_SIZE: str(consumer.pool.concurrency if consumer.pool else 0),
            bodies.PROP_CONSUMER_START_TIMESTAMP: str(self._started_ms),
            bodies.PROP_CLIENT_VERSION: f"GantryMQ {version('gantrymq')}",
        }


@dataclass(slots=True)
class _Directly:
    """Source of a message that an operator sends. `done` is set after the handler has ended."""

    queue: MessageQueue
    dropped: bool = False
    counters: TopicCounters = field(default_factory=TopicCounters)
    last_consume: float = 0.0
    done: asyncio.Future[BaseException | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


def _handled(source: _Directly, message: MessageExt, error: BaseException | None) -> None:
    if not source.done.done():
        source.done.set_result(error)
