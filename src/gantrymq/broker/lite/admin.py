"""LiteAdmin: requests of administrators about lite topics (`LiteManagerProcessor`)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.lite.dispatcher import LiteDispatcher
from gantrymq.broker.lite.subscriptions import LiteSubscriptions
from gantrymq.broker.pop import OrderlyPops
from gantrymq.broker.tables import (
    SubscriptionGroupConfig,
    is_lite,
    lite_expiration_minutes,
)
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.lite import (
    BrokerLiteInfoBody,
    LiteClientInfoBody,
    LiteGroupInfoBody,
    LiteLagInfo,
    LiteTopicInfoBody,
    ParentTopicInfoBody,
)
from gantrymq.protocol.bodies.stats import OffsetWrapper, TopicOffset
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.lite import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from gantrymq.protocol.lite_topic import (
    LITE_BIND_TOPIC,
    light_queue_of,
    light_queue_prefix,
    lite_topic_of,
    lite_topic_problem,
)
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.light.light_queues import LightQueues

#: Largest number of names in a response, and of lite topics with the largest lags.
_MAX_RETURNED = 10_000
#: Number of lite topics that one step of a request looks at.
_AT_ONCE = 100


class LiteAdmin:
    """Answers requests about the lite topics of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        light: LightQueues,
        subscriptions: LiteSubscriptions,
        dispatcher: LiteDispatcher,
        orderly: OrderlyPops,
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._long_requests = context.long_requests
        self._light = light
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._orderly = orderly

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_LITE_INFO: self.broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.parent_topic_info,
            RequestCode.GET_LITE_TOPIC_INFO: self.lite_topic_info,
            RequestCode.GET_LITE_CLIENT_INFO: self.client_info,
            RequestCode.GET_LITE_GROUP_INFO: self.group_info,
            RequestCode.TRIGGER_LITE_DISPATCH: self.dispatch,
        }

    def broker_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the numbers of light queues and subscriptions, the parent topics, and their groups."""
        topics = self._topics.table.topic_config_table
        body = BrokerLiteInfoBody(
            store_type="default",
            max_lmq_num=self._store.config.max_lmq_consume_queue_num,
            current_lmq_num=self._light.queue_count,
            lite_subscription_count=self._subscriptions.count,
            order_info_count=len(self._orderly),
            cq_table_size=len(self._store.topics()),
            offset_table_size=self._offsets.size,
            event_map_size=sum(1 for client in self._subscriptions if client.ready),
            topic_meta={
                name: lite_expiration_minutes(config.attributes)
                for name, config in topics.items()
                if is_lite(config.attributes)
            },
            group_meta=self._groups_of_topics(),
        )
        return RemotingCommand.response(body=encode_json(body))

    def parent_topic_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the number of lite topics of a parent topic, their expiration and their groups."""
        topic = request.read_header(GetParentTopicInfoRequestHeader).topic
        config = self._lite_topic(topic)
        groups = self._groups_of_topics().get(topic)
        body = ParentTopicInfoBody(
            topic=topic,
            ttl=lite_expiration_minutes(config.attributes),
            groups=groups,
            lmq_num=self._light.queue_count,
            lite_topic_count=self._light.count(light_queue_prefix(topic)),
        )
        return RemotingCommand.response(body=encode_json(body))

    def lite_topic_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the offsets and the subscribers of a lite topic."""
        header = request.read_header(GetLiteTopicInfoRequestHeader)
        self._lite_topic(header.parent_topic)
        queue = self._queue(header.parent_topic, header.lite_topic)
        end = self._store.confirmed_end(queue)
        last_ms = self._store.store_time(queue, end - 1) if end else 0
        body = LiteTopicInfoBody(
            parent_topic=header.parent_topic,
            lite_topic=header.lite_topic,
            subscriber=self._subscriptions.names(queue.topic),
            topic_offset=TopicOffset(queue.min_offset, end, max(last_ms, 0)),
            sharding_to_broker=end > 0,
        )
        return RemotingCommand.response(body=encode_json(body))

    def client_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the lite topics of a client."""
        header = request.read_header(GetLiteClientInfoRequestHeader)
        if header.max_count <= 0:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "[maxCount] field invalid")
        self._lite_topic(header.parent_topic)
        if self._lite_group(header.group).attributes[LITE_BIND_TOPIC] != header.parent_topic:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"Subscription [{header.group}]-[{header.parent_topic}] not match."
            )
        body = LiteClientInfoBody(
            parent_topic=header.parent_topic,
            group=header.group,
            client_id=header.client_id,
            last_access_time=-1,
            lite_topic_count=-1,
        )
        client = self._subscriptions.find(header.client_id)
        if client is not None and client.group == header.group:
            body.last_access_time, body.last_consume_time = client.accessed_ms, client.consumed_ms
            body.lite_topic_count = len(client.queues)
            most = min(header.max_count, _MAX_RETURNED)
            # Java returns the names of the light queues.
            body.lite_topic_set = [name for name, _ in zip(client.queues, range(most), strict=False)]
        return RemotingCommand.response(body=encode_json(body))

    def group_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the lag of a group in one lite topic, or in all of them with those that have the largest lags."""
        header = request.read_header(GetLiteGroupInfoRequestHeader)
        topic = self._lite_group(header.group).attributes[LITE_BIND_TOPIC]
        body = LiteGroupInfoBody(group=header.group, parent_topic=topic, lite_topic=header.lite_topic)
        if not header.lite_topic:
            return self._long_requests.run(connection, request, self._lags(header, body, topic))
        queue = self._queue(topic, header.lite_topic)
        end = self._store.confirmed_end(queue)
        consumed = self._offsets.query(header.group, queue.topic, LIGHT_QUEUE_ID)
        if not end:
            body.total_lag_count = -1
        elif consumed is not None:
            body.total_lag_count = end - consumed
            body.earliest_unconsumed_timestamp = self._store.store_time(queue, consumed)
            before_ms = self._store.store_time(queue, consumed - 1) if consumed else 0
            body.lite_topic_offset_wrapper = OffsetWrapper(end, consumed, last_timestamp=max(before_ms, 0))
        return RemotingCommand.response(body=encode_json(body))

    def _lags(self, header: GetLiteGroupInfoRequestHeader, body: LiteGroupInfoBody, topic: str) -> Steps:
        """Adds up the lags of a group in all lite topics of its topic that it has read."""
        most = min(max(header.top_k, 0), _MAX_RETURNED)
        by_count: list[tuple[int, str, int]] = []
        by_time: list[tuple[int, str, int]] = []
        earliest = -1
        for number, (name, queue) in enumerate(self._read_by(header.group, topic), 1):
            consumed = self._offsets.query(header.group, queue.topic, LIGHT_QUEUE_ID) or 0
            lag = self._store.confirmed_end(queue) - max(consumed, queue.min_offset)
            if lag > 0:
                body.total_lag_count += lag
                since_ms = self._store.store_time(queue, max(consumed, queue.min_offset))
                if since_ms > 0:
                    earliest = since_ms if earliest < 0 else min(earliest, since_ms)
                _keep_largest(by_count, (lag, name, since_ms), most)
                _keep_largest(by_time, (-since_ms, name, lag), most)
            if not number % _AT_ONCE:
                yield
        body.earliest_unconsumed_timestamp = earliest
        body.lag_count_top_k = [LiteLagInfo(name, lag, since) for lag, name, since in sorted(by_count, reverse=True)]
        body.lag_timestamp_top_k = [
            LiteLagInfo(name, lag, -since) for since, name, lag in sorted(by_time, reverse=True)
        ]
        return RemotingCommand.response(body=encode_json(body))

    def dispatch(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Makes the lite topics with messages ready for one client, or for all clients of a group."""
        header = request.read_header(TriggerLiteDispatchRequestHeader)
        self._lite_group(header.group)
        return self._long_requests.run(connection, request, self._dispatch_all(header))

    def _dispatch_all(self, header: TriggerLiteDispatchRequestHeader) -> Steps:
        for client in self._subscriptions.of_group(header.group):
            if not header.client_id or client.client_id == header.client_id:
                for _ in self._dispatcher.dispatch_all(client):
                    yield
        return RemotingCommand.response()

    def _read_by(self, group: str, topic: str) -> Iterator[tuple[str, ConsumeQueue]]:
        """Yields the lite topics of a topic for which a group has an offset, with their light queues."""
        for name in list(self._offsets.topics_of(group)):
            place = lite_topic_of(name)
            if place is not None and place[0] == topic:
                yield place[1], self._light.queue(name)

    def _groups_of_topics(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name, group in self._groups.table.subscription_group_table.items():
            topic = group.attributes.get(LITE_BIND_TOPIC)
            if topic is not None:
                groups.setdefault(topic, []).append(name)
        return groups

    def _lite_topic(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if not is_lite(config.attributes):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match.")
        return config

    def _lite_group(self, group: str) -> SubscriptionGroupConfig:
        config = self._groups.find(group)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        if not config.attributes.get(LITE_BIND_TOPIC):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return config

    def _queue(self, topic: str, lite_topic: str) -> ConsumeQueue:
        if (problem := lite_topic_problem(topic, lite_topic)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        return self._light.queue(light_queue_of(topic, lite_topic))


def _keep_largest(heap: list[tuple[int, str, int]], item: tuple[int, str, int], most: int) -> None:
    if len(heap) < most:
        heapq.heappush(heap, item)
    elif heap and item > heap[0]:
        heapq.heapreplace(heap, item)
