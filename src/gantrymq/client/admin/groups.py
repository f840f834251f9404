"""Consumer groups and clients: configuration, progress, connections."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gantrymq.client.admin.topics import AdminTopics
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.connection import ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTableInfo
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo
from gantrymq.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, QueryConsumeTimeSpanBody, QueueTimeSpan
from gantrymq.protocol.bodies.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
    GroupRequestHeader,
)
from gantrymq.protocol.headers.stats import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, retry_topic


class _MessageRequestMode(msgspec.Struct, rename="camel"):
    """The body of SET_MESSAGE_REQUEST_MODE (`SetMessageRequestModeRequestBody`)."""

    topic: str
    consumer_group: str
    mode: str
    pop_share_queue_num: int


class AdminGroups(AdminTopics):
    """Consumer groups, and who is connected."""

    # -- configuration ------------------------------------------------------------------------------------------

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Makes or changes a group on every master of a cluster, or on one broker; returns their host:port."""
        addresses = await self._targets(cluster, broker)
        body = encode_json(config)
        await self._each(
            f"creating group {config.group_name}",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
        )
        return addresses

    async def create_groups(
        self, configs: Sequence[SubscriptionGroupConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """As `create_group`, many at once."""
        addresses = await self._targets(cluster, broker)
        body = encode_json(SubscriptionGroupList(list(configs)))
        await self._each(
            f"creating {len(configs)} groups",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body),
        )
        return addresses

    async def delete_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, remove_offsets: bool = False
    ) -> list[str]:
        """Deletes a group's configuration, and from a cluster its retry and dead letter topics, too."""
        addresses = await self._targets(cluster, broker)
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=remove_offsets)
        await self._each(
            f"deleting group {group}",
            addresses,
            lambda a: self._call(a, RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
        )
        if cluster is not None:
            for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
                await self.delete_topic(prefix + group, cluster)
        return addresses

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        """The group as one broker has it, None when it doesn't; asking makes none, unlike 352."""
        return (await self.group_configs(address)).get(group)

    async def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """All groups of one broker."""
        response = await self._call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return decode_json(response.body, SubscriptionGroupWrapper).subscription_group_table

    async def set_consume_mode(
        self,
        group: str,
        topic: str,
        mode: str,
        pop_share_queue_num: int = 0,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Has a group's consumers PULL or POP a topic, where brokers assign the queues; returns the brokers."""
        addresses = await self._targets(cluster, broker)
        body = encode_json(_MessageRequestMode(topic, group, mode, pop_share_queue_num))
        await self._each(
            f"setting the consume mode of group {group}",
            addresses,
            lambda a: self._call(a, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body),
        )
        return addresses

    # -- progress -----------------------------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """The consumer groups that the NameServers can tell: those that have a retry topic, sorted."""
        topics = await self.topic_list()
        return [topic.removeprefix(RETRY_TOPIC_PREFIX) for topic in topics if topic.startswith(RETRY_TOPIC_PREFIX)]

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Per queue the broker's and the group's offset, of all its topics or one. Raises NoRouteInfo."""

        async def stats(address: str) -> ConsumeStats:
            header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            response = await self._call(address, RequestCode.GET_CONSUME_STATS, header, timeout_ms=3 * self.timeout_ms)
            return ConsumeStats.decode(response.body)

        total = ConsumeStats()
        answers = await self._each(f"asking for group {group}", await self._brokers_of_group(group, topic), stats)
        for answer in answers.values():
            total.offset_table.update(answer.offset_table)
            total.consume_tps += answer.consume_tps
        return total

    async def broker_consume_stats(
        self, address: str, *, is_order: bool = False, timeout_ms: int = 50_000
    ) -> ConsumeStatsList:
        """The progress of every group of one broker."""
        header = GetConsumeStatsInBrokerHeader(is_order=is_order)
        response = await self._call(address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms)
        return ConsumeStatsList.decode(response.body)

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """When each queue's first, last and last consumed message were stored. Raises NoRouteInfo."""

        async def spans(address: str) -> list[QueueTimeSpan]:
            header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
            response = await self._call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            return decode_json(response.body, QueryConsumeTimeSpanBody).consume_time_span_set

        answers = await self._each(f"asking for group {group}", await self._holders(topic), spans)
        return [span for answer in answers.values() for span in answer]

    # -- connections --------------------------------------------------------------------------------------------

    async def consumer_connection(self, group: str, broker: str | None = None) -> ConsumerConnection:
        """The group's consumers and subscriptions, as any of its brokers or the given one knows them.

        Raises BrokerError with CONSUMER_NOT_ONLINE if there are none, NoRouteInfo for an unknown group.
        """
        address = broker or (await self._holders(retry_topic(group)))[0]
        header = GroupRequestHeader(consumer_group=group)
        response = await self._call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return decode_json(response.body, ConsumerConnection)

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The producers of a group, as a broker of the topic knows them. Raises BrokerError if there are none."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        response = await self._call((await self._holders(topic))[0], RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return decode_json(response.body, ProducerConnection)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """All producers of one broker by group."""
        response = await self._call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_json(response.body, ProducerTableInfo).data

    async def consumer_running_info(
        self, group: str, client_id: str, *, jstack: bool = False, broker: str | None = None
    ) -> ConsumerRunningInfo:
        """What a consumer says of itself: queues, rates. Raises BrokerError when it isn't there or doesn't answer."""
        address = broker or (await self._holders(retry_topic(group)))[0]
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=jstack)
        response = await self._call(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=3 * self.timeout_ms
        )
        return ConsumerRunningInfo.decode(response.body)

    async def _brokers_of_group(self, group: str, topic: str | None) -> list[str]:
        """Where the group's offsets are: with its retry topic, or with the topic."""
        try:
            return await self._holders(retry_topic(group))
        except NoRouteInfo:
            if topic is None:
                raise
            return await self._holders(topic)
