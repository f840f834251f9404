"""SimpleConsumer: pops messages with `receive` and acknowledges each with `ack`. It has no assigned queues.

Source: the SimpleConsumer of RocketMQ 5's clients, over the POP requests of client/impl/MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.consumer_base import GroupConsumer
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.large_bodies import make_ready
from gantrymq.client.consuming.options import ConsumerOptions
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.consuming.start_position import EARLIEST, StartFrom, name_for_brokers
from gantrymq.client.failover import is_role_change
from gantrymq.client.middleware import ReceiveContext, around_receives
from gantrymq.client.options import option, takes
from gantrymq.client.popping.pop_api import PopApi
from gantrymq.client.routes import read_queues
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientError,
    GantryError,
    NoRouteInfo,
    ProtocolError,
    RemotingError,
    RequestTimeout,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP, EXPRESSION_TAG, ConsumerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, INIT_FROM_MIN, PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system import clock, randomness
from gantrymq.system.clock import now_ms
from gantrymq.times import duration_ms, duration_s

log = peer_log(__name__)

#: Largest number of messages of one pop (`PopMessageProcessor`).
MAX_MESSAGES = 32
#: Default invisible duration, in seconds.
INVISIBLE_S = 60.0
#: Default timeout of `receive`, in seconds.
RECEIVE_TIMEOUT_S = 15.0
#: Longest wait for messages of one topic on one broker if there are several such targets, ms.
_TURN_MS = 1000
#: Brokers check once a second whether a wait has timed out. The wait at a broker therefore ends this much earlier, ms.
_LATE_MS = 300
#: For the rest of the time, the client polls with this pause, s.
_PAUSE_S = 0.1
#: Time that a call may take in addition to its wait for messages: for one request, ms, and for a whole `receive`, s.
_ANSWER_MS = 1150
_GRACE_S = 0.9
#: Longest wait for a new route if no broker accepts requests, s.
_ROUTE_CHANGE_S = 1.0
#: Pause after POLLING_FULL: too many requests wait at the broker, s.
_BUSY_DELAY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerOptions(ConsumerOptions):
    """Options of `SimpleConsumer`."""

    start_from: StartFrom = option(
        EARLIEST,
        'Where a group begins that has no offset of a queue: "earliest" (the first message), or "latest" (the broker '
        "decides: the newest message, or the first one if it is still in memory).",
    )

    def _check(self) -> None:
        ConsumerOptions._check(self)
        if isinstance(self.start_from, datetime):
            raise ClientError(
                f"start_from={self.start_from!r}: a SimpleConsumer can't start at a time: use 'earliest' or 'latest'"
            )


class SimpleConsumer(GroupConsumer):
    """Receives messages of the subscribed topics. All consumers of a group share them, message by message.

    Example:
        consumer = SimpleConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    A message that is not acknowledged within its invisible duration is redelivered to any consumer of the group. After
    the group's retries (16) it goes to the dead-letter queue.
    """

    _options: SimpleConsumerOptions

    @takes(SimpleConsumerOptions)
    def __init__(self, options: SimpleConsumerOptions) -> None:
        super().__init__(options)
        self._client: ClientInstance | None = None
        self._answers = self._new_answers()
        self._turn = randomness.randrange(1 << 30)

    async def _open(self, stack: AsyncExitStack) -> None:
        data = ConsumerData(
            self._wire_group,
            CONSUME_POP,
            consume_from_where=name_for_brokers(self._options.start_from),
            subscription_data_set=list(self._subscriptions.values()),
            unit_mode=self._options.unit_mode,
        )
        handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ignored}
        stack.callback(self._forget)
        client = self._client = self._connect(data, handlers)
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        stack.push_async_callback(self._answers.stop)
        client.start()
        await introduce(client, self._wire_group, list(self._subscriptions.values()), shares_queues=False)

    def _forget(self) -> None:
        self._client = None
        self._answers = self._new_answers()

    def _new_answers(self) -> Tasks:
        return Tasks(f"telling brokers about subscriptions and messages of group {self.group}")

    async def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = RECEIVE_TIMEOUT_S,
    ) -> list[MessageExt]:
        """Receives messages. No other consumer gets them until their invisible duration ends.

        Requests go to topics and brokers round robin, one request at a time. Unreachable brokers are skipped.

        Args:
            max_messages: Largest number of messages, 1 to 32. Default: 32.
            invisible_time: Invisible duration of the messages, in seconds or as a timedelta. Default: 60.0.
            timeout: Longest wait for the first message, in seconds or as a timedelta. The call can take up to 1 s
                longer. Default: 15.0.

        Returns:
            Messages; an empty list if none arrives in time.

        Raises:
            ClientError: An argument is invalid, or there is no subscription.
            NoRouteInfo: No subscribed topic has a route.
            BrokerUnavailable: No broker has a master at present.
            BrokerError: A broker rejects the request.
            RemotingError: No broker is reachable in this time.
        """
        client = self._started()
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ClientError(f"max_messages {max_messages}: 1 to {MAX_MESSAGES} are possible")
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before you receive")
        invisible_ms = duration_ms("invisible_time", invisible_time)
        timeout_s = duration_s("timeout", timeout)
        deadline = clock.monotonic() + timeout_s

        async def receive(context: ReceiveContext) -> list[MessageExt]:
            try:
                async with asyncio.timeout(timeout_s + _GRACE_S):
                    messages = await self._receive(client, max_messages, invisible_ms, deadline)
            except TimeoutError:
                asked = ";".join(client.routes.name_servers)
                raise RequestTimeout(f"no broker or NameServer answered in {timeout_s:g} s", asked) from None
            # Bodies beyond the limit for large bodies are decompressed when they are read.
            await make_ready(messages)
            return messages

        return await (around_receives(self._options.middleware, receive) or receive)(self._receive_context(client))

    async def _receive(
        self, client: ClientInstance, max_messages: int, invisible_ms: int, deadline: float
    ) -> list[MessageExt]:
        api = PopApi(client, self._wire_group, self._options.max_body_size)
        targets = await self._targets(client)
        # Polls each target once without waiting, then long-polls the targets round robin.
        asked = 0
        short_polls = ShortPolls()
        while True:
            target = topic, broker_name = targets[self._turn % len(targets)]
            self._turn += 1
            left_ms = max(0, round(1000 * (deadline - clock.monotonic())))
            poll_ms = 0 if asked < len(targets) - 1 else left_ms if len(targets) == 1 else min(left_ms, _TURN_MS)
            poll_ms = max(poll_ms - _LATE_MS, 0)
            began = clock.monotonic()
            try:
                messages = await self._pop(api, topic, broker_name, max_messages, invisible_ms, poll_ms)
            except (RemotingError, BrokerUnavailable, ProtocolError, BrokerError) as e:
                self._check_open()
                if isinstance(e, BrokerError) and not is_role_change(e):
                    raise
                targets.remove(target)
                if targets:
                    client.report_failure(topic, e)
                elif await self._has_moved(client, topic, broker_name, e, deadline):
                    targets = await self._targets(client)
                else:
                    raise
                client.failure_log.report(f"can't receive from topic {topic} on broker {broker_name}", e)
                continue
            asked += 1
            if messages or (asked >= len(targets) and clock.monotonic() >= deadline):
                return messages
            if asked >= len(targets):
                pause_s = short_polls.pause(False, clock.monotonic() - began) if poll_ms else _PAUSE_S
                await asyncio.sleep(min(pause_s, left_ms / 1000))

    async def _has_moved(
        self, client: ClientInstance, topic: str, broker_name: str, error: GantryError, deadline: float
    ) -> bool:
        """Returns whether the topic's route has changed since the failed request, or changes within a second."""
        route, left_s = client.routes.cached(topic), deadline - clock.monotonic()
        if left_s <= 0:
            client.report_failure(topic, error)
            return False
        refused_by = error.address if isinstance(error, BrokerError) else None
        if refused_by not in (None, client.routes.master_address(broker_name)):
            return True
        await client.recover(topic, broker_name, error, min(left_s, _ROUTE_CHANGE_S))
        return client.routes.cached(topic) is not route

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges a message: it is consumed. Raises BrokerError if its invisible duration has ended."""
        client, topic = self._started(), self._wire_topic(message.topic)
        try:
            await PopApi(client, self._wire_group).ack(message, topic)
        except GantryError as e:
            client.report_failure(topic, e)
            raise

    async def change_invisible_time(self, message: MessageExt, invisible_time: float | timedelta) -> None:
        """Changes the invisible duration of a message. Unless acknowledged, the message is redelivered after this time.

        Args:
            message: Received message.
            invisible_time: Invisible duration from now on, in seconds or as a timedelta.

        Raises:
            BrokerError: The invisible duration has ended.
        """
        invisible_ms = duration_ms("invisible_time", invisible_time)
        client, topic = self._started(), self._wire_topic(message.topic)
        try:
            await PopApi(client, self._wire_group).change_invisible_time(message, topic, invisible_ms)
        except GantryError as e:
            client.report_failure(topic, e)
            raise

    async def _targets(self, client: ClientInstance) -> list[tuple[str, str]]:
        """Returns (topic, broker name) of all brokers that may have messages."""
        targets: list[tuple[str, str]] = []
        missing: NoRouteInfo | None = None
        for topic in list(self._subscriptions):
            try:
                # An incomplete route is enough: messages of a missing broker are received later.
                queues = read_queues(topic, await client.routes.get(topic))
                targets += sorted({(topic, queue.broker_name) for queue in queues})
            except NoRouteInfo as e:
                missing = e
        if not targets:
            raise missing or NoRouteInfo(", ".join(self._subscriptions), client.routes.name_servers)
        try:
            async with asyncio.timeout(_PAUSE_S):
                await client.greet_new_brokers()
        except TimeoutError:
            pass  # The heartbeats continue: a silent broker must not delay the others.
        return targets

    async def _pop(
        self, api: PopApi, topic: str, broker_name: str, max_messages: int, invisible_ms: int, poll_ms: int
    ) -> list[MessageExt]:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return []
        header = PopMessageRequestHeader(
            consumer_group=self._wire_group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=now_ms(),
            init_mode=INIT_FROM_MIN if self._options.start_from == EARLIEST else INIT_FROM_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            bname=broker_name,
        )
        try:
            popped = await api.pop(broker_name, header, _ANSWER_MS)
        except BrokerError as e:
            if e.code != ResponseCode.POLLING_FULL:
                raise
            await asyncio.sleep(_BUSY_DELAY_S)
            return []
        messages = popped
        if subscription.tags_set and subscription.expression_type == EXPRESSION_TAG:
            # Different tags can have the same hash code, and the broker compares only hash codes.
            messages = [message for message in popped if message.tags in subscription.tags_set]
            for message in popped:
                if message.tags not in subscription.tags_set:
                    self._answers.start(self._ack_unwanted(api, message, topic))
        self._strip_namespace(messages)
        return messages

    async def _ack_unwanted(self, api: PopApi, message: MessageExt, topic: str) -> None:
        try:
            await api.ack(message, topic)
        except GantryError as e:
            log.warning("can't acknowledge unsubscribed message %s, it is redelivered: %s", message.msg_id, e)

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._client is not None:
            self._client.set_subscriptions(self._subscriptions.values())
            self._answers.start(self._client.heartbeat())

    def _started(self) -> ClientInstance:
        self._check_open()
        assert self._client is not None
        return self._client


def _ignored(connection: Connection, request: RemotingCommand) -> None:
    """Ignores changes of the group: a simple consumer has no queues to rebalance."""
