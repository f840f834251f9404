"""SimpleConsumer: pops messages one by one, without queues of its own: `receive`, then `ack`.

Source: the SimpleConsumer of RocketMQ 5's clients, over the POP requests of client/impl/MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assignment import ErrorCallback
from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere, checked_from_where, told_to_brokers
from gantrymq.client.consuming.consume_hooks import ReceiveHook, receiving
from gantrymq.client.consuming.consumer_base import GroupConsumer
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.large_bodies import make_ready
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.failover import is_role_change
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
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET, CONSUME_POP, EXPRESSION_TAG, ConsumerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, INIT_FROM_MIN, PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import Connection, RequestHandler, RpcHook
from gantrymq.system import clock, randomness, tls
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: The most messages of one pop (`PopMessageProcessor`).
MAX_MESSAGES = 32
#: How long a received message is kept from others.
INVISIBLE_MS = 60_000
#: How long `receive` waits for a message.
AWAIT_MS = 15_000
#: How long each of several topics and brokers is waited for in its turn.
_TURN_MS = 1000
#: Brokers look once a second who has waited long enough: so the last of the time isn't waited for there, ...
_LATE_MS = 300
#: ... but asked again in such pauses, s.
_PAUSE_S = 0.1
#: How long a broker may take beyond the time that it waits for messages, ms; all together, s.
_ANSWER_MS = 1150
_GRACE_S = 0.9
#: For so long `receive` waits for another route when no broker takes its requests, s.
_ROUTE_CHANGE_S = 1.0
#: After POLLING_FULL: so many wait at the broker already.
_BUSY_DELAY_S = 0.5


class SimpleConsumer(GroupConsumer):
    """Receives messages of the subscribed topics; any number of consumers of `group` share them, message by message.

    A message that is not acknowledged in its invisible time comes again, to whoever asks then. After the group's
    retry times (16) it goes to the dead letter queue. Reading the `body` of one that doesn't decompress, or to more
    than `max_body_size` bytes, raises CompressionError.

        consumer = SimpleConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    `name_servers` is a list of HOST:PORT, one string with `;` between them, or the URL of a page that says them;
    `namespace` is put before topics and the group. A group that has not popped from a queue yet begins as
    `consume_from_where` says. `on_error` is called with what goes wrong in the background, as often as it is logged,
    `receive_hooks` after each `receive`, `hooks` around requests; with an `ssl_context` connections are encrypted.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        consume_from_where: ConsumeFromWhere = CONSUME_FROM_FIRST_OFFSET,
        max_body_size: int = MAX_DECOMPRESSED_SIZE,
        receive_hooks: Sequence[ReceiveHook] = (),
        on_error: ErrorCallback | None = None,
        namespace: str = "",
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        super().__init__(
            name_servers, group, namespace=namespace, ssl_context=ssl_context, hooks=hooks, on_error=on_error
        )
        checked_from_where(consume_from_where)
        self._consume_from_where = consume_from_where
        self._max_body_size = max_body_size
        self._receive_hooks = list(receive_hooks)
        self._data: ConsumerData | None = None
        self._client: ClientInstance | None = None
        self._answers = self._new_answers()
        self._turn = randomness.randrange(1 << 30)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Joins the group."""
        self._data = ConsumerData(
            self._wire_group,
            CONSUME_POP,
            consume_from_where=told_to_brokers(self._consume_from_where),
            subscription_data_set=list(self._subscriptions.values()),
        )
        handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ignored}
        stack.callback(self._forget)
        client = self._client = self._connect(self._data, handlers)
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        stack.push_async_callback(self._answers.stop)
        client.start()
        await introduce(client, self._wire_group, list(self._subscriptions.values()))

    def _forget(self) -> None:
        self._client = None
        self._answers = self._new_answers()

    def _new_answers(self) -> Tasks:
        return Tasks(f"telling brokers about subscriptions and messages of group {self.group}")

    async def receive(
        self, max_messages: int = MAX_MESSAGES, invisible_ms: int = INVISIBLE_MS, await_ms: int = AWAIT_MS
    ) -> list[MessageExt]:
        """Up to `max_messages` (1 to 32), which others don't get for `invisible_ms`; none when none come in `await_ms`.

        Topics and brokers take turns; one of them is asked at a time, and those that can't be reached are left out. It
        takes less than a second longer than `await_ms`, whatever the brokers do. Raises NoRouteInfo, BrokerError,
        BrokerUnavailable, or a RemotingError when none can be reached in that time.
        """
        client = self._started()
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ClientError(f"max_messages {max_messages}: 1 to {MAX_MESSAGES} are possible")
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before you receive")
        deadline = clock.monotonic() + await_ms / 1000
        topics = self._subscribed_topics
        async with receiving(self._receive_hooks, self.group, client.client_id, topics) as messages:
            try:
                async with asyncio.timeout(await_ms / 1000 + _GRACE_S):
                    messages += await self._receive(client, max_messages, invisible_ms, deadline)
            except TimeoutError:
                asked = ";".join(client.routes.name_servers)
                raise RequestTimeout(f"no broker or NameServer answered in {await_ms} ms", asked) from None
            # The others' bodies are decompressed by who reads them.
            await make_ready(messages)
        return messages

    async def _receive(
        self, client: ClientInstance, max_messages: int, invisible_ms: int, deadline: float
    ) -> list[MessageExt]:
        api = PopApi(client, self._wire_group, self._max_body_size)
        targets = await self._targets(client)
        # All are asked once without waiting; then they wait in turns.
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
                client.troubles.tell(f"can't receive from topic {topic} on broker {broker_name}", e)
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
        """Whether the topic's route has changed since a request failed, or changes soon."""
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
        """Says that a message is consumed. Raises BrokerError when its invisible time is over."""
        client, topic = self._started(), self._wire_topic(message.topic)
        try:
            await PopApi(client, self._wire_group).ack(message, topic)
        except GantryError as e:
            client.report_failure(topic, e)
            raise

    async def change_invisible_time(self, message: MessageExt, invisible_ms: int) -> None:
        """Has a message come again `invisible_ms` from now unless it is acknowledged before."""
        client, topic = self._started(), self._wire_topic(message.topic)
        try:
            await PopApi(client, self._wire_group).change_invisible_time(message, topic, invisible_ms)
        except GantryError as e:
            client.report_failure(topic, e)
            raise

    async def _targets(self, client: ClientInstance) -> list[tuple[str, str]]:
        """(topic, broker name) of all that may have messages."""
        targets: list[tuple[str, str]] = []
        missing: NoRouteInfo | None = None
        for topic in list(self._subscriptions):
            try:
                # A broker that the route lacks only has its messages popped later.
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
            pass  # It goes on beside: the others aren't to wait for one that is silent.
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
            init_mode=INIT_FROM_MIN if self._consume_from_where == CONSUME_FROM_FIRST_OFFSET else INIT_FROM_MAX,
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
            # The broker compares hash codes only: other tags may have the same one.
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
            log.warning("%s, which nobody subscribed to, comes again: %s", message.msg_id, e)

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._client is not None and self._data is not None:
            self._data.subscription_data_set = list(self._subscriptions.values())
            self._answers.start(self._client.heartbeat())

    def _started(self) -> ClientInstance:
        self._check_open()
        assert self._client is not None
        return self._client


def _ignored(connection: Connection, request: RemotingCommand) -> None:
    """Whoever else is in the group makes no difference."""
