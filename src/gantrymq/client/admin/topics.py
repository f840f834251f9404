"""Topics: create, change, delete, list, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from gantrymq.client.admin.base import any_address
from gantrymq.client.admin.namesrv import AdminNamesrv
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientError, IllegalMessage, NoRouteInfo, RequestTimeout
from gantrymq.protocol.bodies.offset import GroupList
from gantrymq.protocol.bodies.route import TopicList
from gantrymq.protocol.bodies.stats import TopicStatsTable
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig, TopicConfigTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.topic import (
    DeleteTopicInNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
    TopicRequestHeader,
)
from gantrymq.protocol.topic_name import topic_problem

#: Interval of requests for the route of a new topic, s.
ROUTE_POLL_S = 0.02


class _TopicConfigList(msgspec.Struct, rename="camel"):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (`CreateTopicListRequestBody`)."""

    topic_config_list: list[TopicConfig]


class AdminTopics(AdminNamesrv):
    """Requests for topics. If a method has the arguments `cluster` and `broker` (HOST:PORT), pass one of them."""

    async def topic_list(self) -> list[str]:
        """Returns every topic in the NameServers, sorted, including retry and dead-letter topics."""
        response = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_json(response.body, TopicList).topic_list)

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """Returns the topics of the cluster's brokers, sorted."""
        response = await self._ask_name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster=cluster)
        )
        return sorted(decode_json(response.body, TopicList).topic_list)

    async def clusters_of_topic(self, topic: str) -> list[str]:
        """Returns the clusters whose brokers have queues of the topic, sorted. Raises NoRouteInfo."""
        route = await self.topic_route(topic)
        return sorted({broker.cluster for broker in route.broker_datas})

    async def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Creates or changes a topic on every master of a cluster, or on one broker. Returns HOST:PORT of each.

        Each broker then registers the topic with the NameServers. Names of attributes start with + (set) or - (remove).
        Raises PartialFailure if some masters fail. It is safe to repeat the call if it removes no attribute: masters
        that have already removed one refuse to remove it again.
        """
        addresses = await self._targets(cluster, broker)

        async def create(address: str) -> None:
            await self._transport.api.create_topic(address, config, self._transport.timeout_ms)

        await self._each(f"creating topic {config.topic_name}", addresses, create)
        return addresses

    async def ensure_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> bool:
        """Creates a topic on all masters that lack it. Returns true if at least one master lacked it.

        Existing topics do not change. The method returns when a NameServer's route contains all these brokers, so that
        new producers use all of them.

        Args:
            topic: Name of the topic.
            queues: Number of queues on each broker, for new topics. Default: 8.
            perm: Permission of new topics: 2 write, 4 read, 6 both. Default: 6.
            cluster: Cluster of the topic. Default: all clusters.
            attributes: Attributes of new topics, such as `{"cleanup.policy": "COMPACTION"}`. Default: none.

        Raises:
            BrokerUnavailable: There is no master.
            PartialFailure: Some masters failed.
            RequestTimeout: No NameServer has the complete route within `timeout`.
        """
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        if queues < 1:
            raise ClientError(f"queues={queues}: a topic has at least one")
        brokers = await self._masters(cluster)
        added = {f"+{name}": value for name, value in (attributes or {}).items()}
        config = TopicConfig(topic, queues, queues, perm, attributes=added)

        async def ensure(address: str) -> bool:
            try:
                await self.topic_config(address, topic)
            except BrokerError as e:
                if e.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                await self._transport.api.create_topic(address, config, self._transport.timeout_ms)
                return True
            return False

        made = await self._each(f"making topic {topic}", brokers.values(), ensure)
        await self._until_routed(topic, set(brokers))
        return any(made.values())

    async def _masters(self, cluster: str | None) -> dict[str, str]:
        """Returns {broker name: HOST:PORT of its master} of one cluster or all. Raises BrokerUnavailable if empty."""
        if cluster is None:
            found = list((await self.cluster_info()).broker_addr_table.values())
        else:
            found = await self.brokers_of(cluster)
        masters = {broker.broker_name: broker.master_address for broker in found if broker.master_address}
        if not masters:
            whose = f"cluster {cluster!r}" if cluster is not None else f"the cluster of {';'.join(self.name_servers)}"
            raise BrokerUnavailable(f"{whose} has no master at the moment")
        return masters

    async def _until_routed(self, topic: str, brokers: set[str]) -> None:
        known: set[str] = set()
        try:
            async with asyncio.timeout(self._transport.timeout_ms / 1000):
                while True:
                    with suppress(NoRouteInfo):
                        known = {data.broker_name for data in (await self.topic_route(topic)).queue_datas}
                    if brokers <= known:
                        return
                    # Brokers register a new topic at once, which takes a few milliseconds.
                    await asyncio.sleep(ROUTE_POLL_S)
        except TimeoutError:
            missing = ", ".join(sorted(brokers - known))
            name_servers = ";".join(self.name_servers)
            text = (
                f"topic {topic} is created, but after {self._transport.timeout_ms} ms {name_servers} has no "
                f"registration of it from {missing}: check that these brokers reach the NameServers"
            )
            raise RequestTimeout(text, name_servers) from None

    async def create_topics(
        self, configs: Sequence[TopicConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Creates or changes several topics, like `create_topic`."""
        addresses = await self._targets(cluster, broker)
        body = encode_json(_TopicConfigList(list(configs)))
        await self._each(
            f"creating {len(configs)} topics",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body),
        )
        return addresses

    async def topic_config(self, address: str, topic: str) -> TopicConfig:
        """Returns the topic's configuration on one broker. Raises BrokerError with TOPIC_NOT_EXIST."""
        header = TopicRequestHeader(topic=topic)
        return decode_json((await self._call(address, RequestCode.GET_TOPIC_CONFIG, header)).body, TopicConfig)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Returns all topics of one broker, including system topics."""
        response = await self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_json(response.body, TopicConfigTable).topic_config_table

    async def system_topics(self, address: str) -> list[str]:
        """Returns the topics of one broker that the broker itself uses, sorted. One of them has the broker's name."""
        response = await self._call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return sorted(decode_json(response.body, TopicList).topic_list)

    async def update_topic_perm(
        self, topic: str, perm: int, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, int]:
        """Sets the topic's permission: 2 write, 4 read, 6 both. Returns {HOST:PORT: old permission}."""

        async def update(address: str) -> int:
            config = await self.topic_config(address, topic)
            # Attributes that are not in the request do not change.
            changed = msgspec.structs.replace(config, perm=perm, attributes={})
            await self._transport.api.create_topic(address, changed, self._transport.timeout_ms)
            return config.perm

        return await self._each(
            f"setting the permission of topic {topic}", await self._targets(cluster, broker), update
        )

    async def delete_topic(self, topic: str, cluster: str) -> list[str]:
        """Deletes the topic from every master of the cluster, then from the NameServers. Returns the masters.

        If a broker fails, raises PartialFailure, and the NameServers keep the topic.
        """
        masters = await self.masters_of(cluster)
        header = TopicRequestHeader(topic=topic)
        await self._each(
            f"deleting topic {topic}", masters, lambda a: self._call(a, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        )
        in_name_server = DeleteTopicInNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await self._each(
            f"deleting topic {topic}",
            self.name_servers,
            lambda a: self._call(a, RequestCode.DELETE_TOPIC_IN_NAMESRV, in_name_server),
        )
        return masters

    async def topic_stats(self, topic: str, *, broker: str | None = None) -> TopicStatsTable:
        """Returns first and last offset of each queue and the time of its last write (ms). Raises NoRouteInfo.

        `broker` selects one broker (HOST:PORT). Default: all brokers with the topic.
        """

        async def stats(address: str) -> TopicStatsTable:
            response = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic=topic))
            return TopicStatsTable.decode(response.body)

        total = TopicStatsTable()
        holders = [broker] if broker else await self.holders(topic)
        for answer in (await self._each(f"asking for topic {topic}", holders, stats)).values():
            total.offset_table.update(answer.offset_table)
            total.topic_put_tps += answer.topic_put_tps
        return total

    async def groups_of_topic(self, topic: str, *, broker: str | None = None) -> list[str]:
        """Returns the groups that read the topic or have offsets in it, sorted. Raises NoRouteInfo.

        `broker` selects one broker (HOST:PORT). Default: all brokers with the topic.
        """

        async def groups(address: str) -> list[str]:
            header = TopicRequestHeader(topic=topic)
            response = await self._call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return decode_json(response.body, GroupList).group_list

        holders = [broker] if broker else await self.holders(topic)
        answers = await self._each(f"asking who reads {topic}", holders, groups)
        return sorted({group for answer in answers.values() for group in answer})

    async def holders(self, topic: str, cluster: str | None = None) -> list[str]:
        """Returns HOST:PORT of a replica of each broker with the topic. Raises NoRouteInfo or BrokerUnavailable."""
        brokers = (await self.topic_route(topic)).broker_datas
        addresses = [any_address(broker) for broker in brokers if cluster in (None, broker.cluster)]
        found = [address for address in addresses if address]
        if not found:
            raise BrokerUnavailable(f"no broker has topic {topic!r} at the moment")
        return found
