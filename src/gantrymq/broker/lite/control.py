"""LiteControl: LITE_SUBSCRIPTION_CTL, with which clients change their lite topics (`LiteSubscriptionCtlProcessor`)."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.lite.dispatcher import LiteDispatcher
from gantrymq.broker.lite.pops import check_lite_group
from gantrymq.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from gantrymq.broker.pop import OrderlyPops
from gantrymq.broker.tables import (
    LITE_EXCLUSIVE,
    LITE_RESET_EXCLUSIVE,
    LITE_RESET_UNSUBSCRIBE,
    LITE_SUB_MODEL,
    SubscriptionGroupConfig,
    is_lite,
)
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.lite import (
    POLICY_MAX,
    POLICY_MIN,
    LiteSubscription,
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
    OffsetOptionType,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json
from gantrymq.protocol.lite_topic import light_queue_of, lite_client_quota, lite_topic_problem
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue

#: Number of lite topics that one step of a request handles.
_AT_ONCE = 20
#: Longest client id, in characters.
_LONGEST_CLIENT_ID = 255
_FROM_BEGINNING = OffsetOption(OffsetOptionType.POLICY, POLICY_MIN)


class LiteControl:
    """Handles the changes of subscriptions."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        subscriptions: LiteSubscriptions,
        dispatcher: LiteDispatcher,
        orderly: OrderlyPops,
    ) -> None:
        self._long_requests = context.long_requests
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._orderly = orderly

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.LITE_SUBSCRIPTION_CTL: self.control}

    def control(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Adds, removes or replaces subscriptions of clients, in steps."""
        body = decode_request_json(request.body, LiteSubscriptionCtlBody) if request.body else LiteSubscriptionCtlBody()
        if not body.subscription_set:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        return self._long_requests.run(connection, request, self._all(connection, body.subscription_set))

    def _all(self, connection: Connection, changes: Sequence[LiteSubscription]) -> Steps:
        for change in changes:
            yield from self._one(connection, change)
            yield
        return RemotingCommand.response()

    def _one(self, connection: Connection, change: LiteSubscription) -> Steps:
        if not change.client_id.strip() or len(change.client_id) > _LONGEST_CLIENT_ID:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, f"a client id must have 1 to {_LONGEST_CLIENT_ID} characters"
            )
        if change.action is LiteSubscriptionAction.COMPLETE_REMOVE:
            known = self._subscriptions.find(change.client_id)
            if known is not None:
                known = self._subscriptions.client(known.client_id, known.group, known.topic, connection)
                yield from self._remove(known, list(known.queues))
            return None
        group = self._group(change)
        names = yield from self._names(change)
        client = self._subscriptions.client(change.client_id, change.group, change.topic, connection)
        if change.action is LiteSubscriptionAction.PARTIAL_REMOVE:
            yield from self._remove(client, names, resets=group.attributes.get(LITE_RESET_UNSUBSCRIBE) == "true")
            return None
        is_complete = change.action is LiteSubscriptionAction.COMPLETE_ADD
        if is_complete:
            wanted = set(names)
            yield from self._remove(client, [name for name in client.queues if name not in wanted])
        for number, name in enumerate(names, 1):
            # A client repeats its lite topics by COMPLETE_ADD, also those that it has lost to another client.
            self._add(client, group, name, None if is_complete else change.offset_option, is_repeated=is_complete)
            if not number % _AT_ONCE:
                yield
        return None

    def _names(self, change: LiteSubscription) -> Generator[None, None, list[str]]:
        """Returns the names of the light queues. Raises RequestRefused for a name that no lite topic can have."""
        names = []
        for number, lite_topic in enumerate(dict.fromkeys(change.lite_topic_set or ()), 1):
            problem = lite_topic_problem(change.topic, lite_topic)
            if problem is not None:
                raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, problem)
            names.append(light_queue_of(change.topic, lite_topic))
            if not number % _AT_ONCE:
                yield
        return names

    def _group(self, change: LiteSubscription) -> SubscriptionGroupConfig:
        topic = self._topics.get(change.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{change.topic}] not exist")
        if not is_lite(topic.attributes):
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, f"the type of topic [{change.topic}] is not LITE: set message.type=LITE"
            )
        return check_lite_group(self._groups.find(change.group), change.group, change.topic)

    def _add(
        self,
        client: LiteClient,
        group: SubscriptionGroupConfig,
        name: str,
        option: OffsetOption | None,
        *,
        is_repeated: bool,
    ) -> None:
        queue = self._store.queue(name, LIGHT_QUEUE_ID)
        is_new = name not in client.queues
        is_exclusive = is_new and group.attributes.get(LITE_SUB_MODEL) == LITE_EXCLUSIVE
        if is_exclusive and is_repeated and self._subscriptions.has_lost(client, name):
            # It has not received the notification.
            self._subscriptions.notify(client, name)
            return
        self._subscriptions.add(client, queue, lite_client_quota(group.attributes))
        lost = self._subscriptions.take_over(name, client.group, client) if is_exclusive else []
        if lost and group.attributes.get(LITE_RESET_EXCLUSIVE) == "true":
            self._reset(client.group, queue, _FROM_BEGINNING)
        if option is not None:
            self._reset(client.group, queue, option)
        if (is_new or option is not None) and self._dispatcher.has_messages(queue, client.group):
            self._dispatcher.dispatch(name, client.group)

    def _remove(self, client: LiteClient, names: list[str], *, resets: bool = False) -> Generator[None, None, None]:
        for number, name in enumerate(names, 1):
            queue = client.queues.get(name)
            if self._subscriptions.remove(client, name) and resets and queue is not None:
                self._reset(client.group, queue, _FROM_BEGINNING)
                if self._dispatcher.has_messages(queue, client.group):
                    # Another client of the group reads them.
                    self._dispatcher.dispatch(name, client.group)
            if not number % _AT_ONCE:
                yield

    def _reset(self, group: str, queue: ConsumeQueue, option: OffsetOption) -> None:
        """Sets where a group continues in a light queue. Its messages in flight are dropped."""
        end = self._store.confirmed_end(queue)
        current = self._offsets.query(group, queue.topic, LIGHT_QUEUE_ID)
        target: int | None = None
        match option.type:
            case OffsetOptionType.POLICY:
                target = {POLICY_MIN: queue.min_offset, POLICY_MAX: end}.get(option.value)
            case OffsetOptionType.OFFSET:
                target = option.value
            case OffsetOptionType.TAIL_N:
                target = None if current is None else current - option.value
            case OffsetOptionType.TIMESTAMP:
                target = self._store.offset_by_time(queue, option.value)
        if target is None:
            return
        target = max(min(target, end), queue.min_offset)
        if target != current:
            self._offsets.commit(group, queue.topic, LIGHT_QUEUE_ID, target)
            self._orderly.discard(queue.topic, group, [LIGHT_QUEUE_ID])
