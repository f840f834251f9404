"""Consumer groups and clients: configuration, progress, connections."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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
from gantrymq.times import duration_ms


class _MessageRequestMode(msgspec.Struct, rename="camel"):
    """Body of SET_MESSAGE_REQUEST_MODE (`SetMessageRequestModeRequestBody`)."""

    topic: str
    consumer_group: str
    mode: str
    pop_share_queue_num: int


class AdminGroups(AdminTopics):
    """Requests for consumer groups and connected clients."""

    # -- configuration ------------------------------------------------------------------------------------------

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Creates or changes a group on every master of a cluster, or on one broker. Returns HOST:PORT of each."""
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
        """Creates or changes several groups, like `create_group`."""
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
        """Deletes a group's configuration; with `cluster`, also the group's retry and dead-letter topics."""
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
        """Returns a group's configuration on one broker, or None. Unlike request 352, never creates the group."""
        return (await self.group_configs(address)).get(group)

    async def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Returns all groups of one broker."""
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
        """Sets whether the group's consumers PULL or POP a topic, if brokers assign its queues. Returns the brokers."""
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
        """Returns the consumer groups that have a retry topic in the NameServers, sorted."""
        topics = await self.topic_list()
        return [topic.removeprefix(RETRY_TOPIC_PREFIX) for topic in topics if topic.startswith(RETRY_TOPIC_PREFIX)]

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Returns the end offset and the group's offset of each queue, of all topics or one. Raises NoRouteInfo."""

        async def stats(address: str) -> ConsumeStats:
            header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            response = await self._call(
                address, RequestCode.GET_CONSUME_STATS, header, timeout_ms=3 * self._transport.timeout_ms
            )
            return ConsumeStats.decode(response.body)

        total = ConsumeStats()
        answers = await self._each(f"asking for group {group}", await self._brokers_of_group(group, topic), stats)
        for answer in answers.values():
            total.offset_table.update(answer.offset_table)
            total.consume_tps += answer.consume_tps
        return total

    async def broker_consume_stats(
        self, address: str, *, is_order: bool = False, timeout: float | timedelta = 50.0
    ) -> ConsumeStatsList:
        """Returns the progress of every group on one broker, within `timeout` seconds."""
        timeout_ms = duration_ms("timeout", timeout)
        header = GetConsumeStatsInBrokerHeader(is_order=is_order)
        response = await self._call(address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms)
        return ConsumeStatsList.decode(response.body)

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Returns when each queue's first, last and last consumed message were stored. Raises NoRouteInfo."""

        async def spans(address: str) -> list[QueueTimeSpan]:
            header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
            response = await self._call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            return decode_json(response.body, QueryConsumeTimeSpanBody).consume_time_span_set

        answers = await self._each(f"asking for group {group}", await self.holders(topic), spans)
        return [span for answer in answers.values() for span in answer]

    # -- connections --------------------------------------------------------------------------------------------

    async def consumer_connection(self, group: str, broker: str | None = None) -> ConsumerConnection:
        """Returns the group's consumers and subscriptions, from `broker` or from any broker of the group.

        Raises BrokerError with CONSUMER_NOT_ONLINE if there is no consumer, and NoRouteInfo for an unknown group.
        """
        address = broker or (await self.holders(retry_topic(group)))[0]
        header = GroupRequestHeader(consumer_group=group)
        response = await self._call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return decode_json(response.body, ConsumerConnection)

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Returns the producers of a group from a broker of the topic. Raises BrokerError if there are none."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        response = await self._call((await self.holders(topic))[0], RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return decode_json(response.body, ProducerConnection)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """Returns all producers of one broker, by group."""
        response = await self._call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_json(response.body, ProducerTableInfo).data

    async def consumer_running_info(
        self, group: str, client_id: str, *, jstack: bool = False, broker: str | None = None
    ) -> ConsumerRunningInfo:
        """Returns a consumer's own report: queues, rates. Raises BrokerError if the consumer is gone or hangs."""
        address = broker or (await self.holders(retry_topic(group)))[0]
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=jstack)
        response = await self._call(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=3 * self._transport.timeout_ms
        )
        return ConsumerRunningInfo.decode(response.body)

    async def _brokers_of_group(self, group: str, topic: str | None) -> list[str]:
        """Returns the brokers with the group's offsets: the brokers of its retry topic, or else of the topic."""
        try:
            return await self.holders(retry_topic(group))
        except NoRouteInfo:
            if topic is None:
                raise
            return await self.holders(topic)
