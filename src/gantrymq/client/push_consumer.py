"""PushConsumer: hands each message of its topics to a handler, shared out among the consumers of a group.

Source: client/impl/consumer/DefaultMQPushConsumerImpl, ConsumeMessageConcurrentlyService. A message's way: a
`QueuePuller` pulls it, a handler pool runs the handler on it; then it is taken out of its `ProcessQueue`, or sent back
to the broker, which delivers it again later through the topic %RETRY%group.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from gantrymq.client.assigned_queues import AssignedQueues, PullOptions
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.handler_pool import Handler, HandlerPool, handler_pool
from gantrymq.client.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.queue_puller import PULL_BATCH_SIZE
from gantrymq.client.rebalance import AllocateStrategy, allocate_averagely
from gantrymq.client.rebalancer import Rebalancer
from gantrymq.errors import ClientError, ConnectFailed, GantryError, IllegalMessage
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.heartbeat import (
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    EXPRESSION_TAG,
    SUBSCRIBE_ALL,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import RETRY_TOPIC
from gantrymq.protocol.topic_name import group_problem, retry_topic, topic_problem
from gantrymq.remoting.connection import Connection, RpcHook

log = logging.getLogger(__name__)

#: consumeThreadMin.
CONCURRENCY = 20
#: maxReconsumeTimes: so often is a message delivered again before it goes to the dead letter queue %DLQ%group.
MAX_RECONSUME_TIMES = 16
#: After a message couldn't be sent back, the handler gets it again after so long (submitConsumeRequestLater).
RETRY_LOCALLY_S = 5.0
#: How long `close` waits for handlers.
CLOSE_TIMEOUT_S = 10.0
_SEND_BACK_TIMEOUT_MS = 5000


class PushConsumer:
    """Calls `handler` with every message of the subscribed topics, up to `concurrency` at a time.

    `handler` is a coroutine function, or a plain one that is called in threads. A message counts as consumed when it
    returns; when it raises, the message comes again later, after longer and longer times, and after
    `max_reconsume_times` goes to the dead letter queue. Every message is delivered at least once. Messages are spread
    over all consumers of `group`, which must have the same subscriptions.

        consumer = PushConsumer("127.0.0.1:9876", "group", handle)
        consumer.subscribe("topic", "TagA || TagB")
        async with consumer:
            await asyncio.Event().wait()
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        handler: Handler,
        *,
        concurrency: int = CONCURRENCY,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        consume_from_where: str = CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        pull_batch_size: int = PULL_BATCH_SIZE,
        flow_limits: FlowLimits | None = None,
        allocate: AllocateStrategy = allocate_averagely,
        ssl_context: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        if problem := group_problem(group):
            raise IllegalMessage(problem)
        self.group = group
        self._handler = handler
        self._concurrency = concurrency
        self._max_reconsume_times = max_reconsume_times
        self._options = PullOptions(
            consume_from_where, consume_timestamp_ms, pull_batch_size, flow_limits or FlowLimits()
        )
        self._allocate = allocate
        self._name_servers = name_servers
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._retry_topic = retry_topic(group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._parts: _Parts | None = None
        self._sending_back: set[asyncio.Task[None]] = set()

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG) -> None:
        """Adds a topic, before the start. `expression` is `*`, tags separated by `||`, or SQL92 as its type says."""
        if self._parts is not None:
            raise ClientError("subscribe before the start")
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        self._subscriptions[topic] = SubscriptionData.parse(topic, expression, expression_type)

    async def start(self) -> None:
        """Joins the group and begins to consume; returns before the first queue is assigned."""
        if self._parts is not None:
            raise ClientError("this consumer is already started")
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before the start")
        subscriptions = {**self._subscriptions, self._retry_topic: SubscriptionData.parse(self._retry_topic)}
        client = ClientInstance(
            self._name_servers,
            consumer_data=ConsumerData(
                self.group,
                CONSUME_PASSIVELY,
                consume_from_where=self._options.consume_from_where,
                subscription_data_set=list(subscriptions.values()),
            ),
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed},
            ssl_context=self._ssl_context,
            hooks=self._hooks,
        )
        pool = handler_pool(self._handler, self._concurrency, self._handled)
        queues = AssignedQueues(
            client, self.group, subscriptions, self._pulled, self._options, commits=True, lite=False
        )
        rebalancer = Rebalancer(client, self.group, subscriptions, self._allocate, queues.assign)
        self._parts = _Parts(client, pool, queues, rebalancer)
        client.start()
        rebalancer.start()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Waits for handlers at most `timeout_s`, commits the offsets, leaves the group."""
        if self._parts is None:
            return
        client, pool, queues, rebalancer = self._parts
        await rebalancer.stop()
        await queues.close(self._finish(pool, timeout_s))
        self._parts = None
        await client.close()

    async def _finish(self, pool: HandlerPool, timeout_s: float) -> None:
        await pool.close(timeout_s)
        if self._sending_back:
            await asyncio.wait(self._sending_back)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now; the retry topic's are among them."""
        return self._parts.queues.queues if self._parts else set()

    def _consumer_ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        if self._parts is not None:
            self._parts.rebalancer.wake()

    # -- a message's way ----------------------------------------------------------------------------------------

    def _pulled(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if process_queue.queue.topic == self._retry_topic:
            for message in messages:
                message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        if self._parts is not None:
            self._parts.pool.submit(process_queue, messages)

    def _handled(self, process_queue: ProcessQueue, message: MessageExt, error: Exception | None) -> None:
        if error is None:
            process_queue.remove(message)
            return
        log.warning("handler failed on %s, which will be delivered again", message.msg_id, exc_info=error)
        # A queue that was given up has another reader by now, who gets the message anyway.
        if not process_queue.dropped:
            task = asyncio.create_task(self._send_back(process_queue, message))
            self._sending_back.add(task)
            task.add_done_callback(self._sending_back.discard)

    async def _send_back(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        assert self._parts is not None
        client, pool, _, _ = self._parts
        broker_name = process_queue.queue.broker_name
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self.group,
            delay_level=0,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_reconsume_times,
        )
        try:
            address = client.routes.master_address(broker_name)
            if address is None:
                raise ConnectFailed(f"no route names a master of broker {broker_name}", broker_name)
            await client.api.send_back(address, header, _SEND_BACK_TIMEOUT_MS)
        except GantryError as e:
            log.warning("can't send %s back, trying it again here: %s", message.msg_id, e)
            message.reconsume_times += 1
            asyncio.get_running_loop().call_later(RETRY_LOCALLY_S, pool.submit, process_queue, [message])
        else:
            process_queue.remove(message)


class _Parts(NamedTuple):
    """What a started consumer consists of."""

    client: ClientInstance
    pool: HandlerPool
    queues: AssignedQueues
    rebalancer: Rebalancer
