"""Topics: made, changed, deleted, listed, measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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

#: How often a NameServer is asked whether it knows a new topic, s.
ROUTE_POLL_S = 0.02


class _TopicConfigList(msgspec.Struct, rename="camel"):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (`CreateTopicListRequestBody`)."""

    topic_config_list: list[TopicConfig]


class AdminTopics(AdminNamesrv):
    """Topics. Where a method takes `cluster` or `broker` (host:port), it wants one of them."""

    async def topic_list(self) -> list[str]:
        """Every topic that the NameServers know, sorted; retry and dead letter topics too."""
        response = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_json(response.body, TopicList).topic_list)

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that the cluster's brokers have, sorted."""
        response = await self._ask_name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster=cluster)
        )
        return sorted(decode_json(response.body, TopicList).topic_list)

    async def clusters_of_topic(self, topic: str) -> list[str]:
        """The clusters whose brokers have queues of the topic, sorted. Raises NoRouteInfo."""
        route = await self.topic_route(topic)
        return sorted({broker.cluster for broker in route.broker_datas})

    async def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Makes or changes a topic on every master of a cluster, or on one broker; returns their host:port.

        Each broker tells the NameServers itself. An attribute's name has a leading + (set) or - (remove). Raises
        PartialFailure when some masters did it and others failed: asking again is harmless.
        """
        addresses = await self._targets(cluster, broker)

        async def create(address: str) -> None:
            await self.api.create_topic(address, config, self.timeout_ms)

        await self._each(f"creating topic {config.topic_name}", addresses, create)
        return addresses

    async def ensure_topic(
        self, topic: str, *, queues: int = 8, perm: int = PERM_READ | PERM_WRITE, cluster: str | None = None
    ) -> bool:
        """Makes the topic on those masters that lack it, of `cluster` or of all; whether there were any.

        Where it is it stays as it is: `queues`, on each broker, and `perm` are for a new one. Returns when a NameServer
        names all these brokers for the topic, so that whoever asks now sends to all of them. Raises BrokerUnavailable
        when there is no master, PartialFailure, and RequestTimeout when no NameServer hears of it in `timeout_ms`.
        """
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        if queues < 1:
            raise ClientError(f"queues={queues}: a topic has at least one")
        brokers = await self._masters(cluster)
        config = TopicConfig(topic, queues, queues, perm)

        async def ensure(address: str) -> bool:
            try:
                await self.topic_config(address, topic)
            except BrokerError as e:
                if e.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                await self.api.create_topic(address, config, self.timeout_ms)
                return True
            return False

        made = await self._each(f"making topic {topic}", brokers.values(), ensure)
        await self._until_routed(topic, set(brokers))
        return any(made.values())

    async def _masters(self, cluster: str | None) -> dict[str, str]:
        """{broker name: host:port of its master}, of one cluster or of all. Raises BrokerUnavailable without any."""
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
            async with asyncio.timeout(self.timeout_ms / 1000):
                while True:
                    with suppress(NoRouteInfo):
                        known = {data.broker_name for data in (await self.topic_route(topic)).queue_datas}
                    if brokers <= known:
                        return
                    # Brokers tell the NameServers at once, in no more than a few milliseconds.
                    await asyncio.sleep(ROUTE_POLL_S)
        except TimeoutError:
            missing = ", ".join(sorted(brokers - known))
            name_servers = ";".join(self.name_servers)
            text = (
                f"topic {topic} is made, but {name_servers} hasn't heard of it from {missing} in {self.timeout_ms} ms"
            )
            raise RequestTimeout(text, name_servers) from None

    async def create_topics(
        self, configs: Sequence[TopicConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """As `create_topic`, many at once."""
        addresses = await self._targets(cluster, broker)
        body = encode_json(_TopicConfigList(list(configs)))
        await self._each(
            f"creating {len(configs)} topics",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body),
        )
        return addresses

    async def topic_config(self, address: str, topic: str) -> TopicConfig:
        """The topic as one broker has it. Raises BrokerError with TOPIC_NOT_EXIST."""
        header = TopicRequestHeader(topic=topic)
        return decode_json((await self._call(address, RequestCode.GET_TOPIC_CONFIG, header)).body, TopicConfig)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of one broker, the system's included."""
        response = await self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_json(response.body, TopicConfigTable).topic_config_table

    async def update_topic_perm(
        self, topic: str, perm: int, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, int]:
        """Sets the topic's permission (2 write, 4 read, 6 both), keeps the rest; {host:port: the old one}."""

        async def update(address: str) -> int:
            config = await self.topic_config(address, topic)
            # Attributes that aren't named stay.
            changed = msgspec.structs.replace(config, perm=perm, attributes={})
            await self.api.create_topic(address, changed, self.timeout_ms)
            return config.perm

        return await self._each(
            f"setting the permission of topic {topic}", await self._targets(cluster, broker), update
        )

    async def delete_topic(self, topic: str, cluster: str) -> list[str]:
        """Deletes the topic from every master of the cluster, then from the NameServers; returns the masters.

        Raises PartialFailure when a broker failed: the NameServers keep the topic then.
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

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """First and last offset of each queue, and when it was last written (ms). Raises NoRouteInfo."""

        async def stats(address: str) -> TopicStatsTable:
            response = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic=topic))
            return TopicStatsTable.decode(response.body)

        total = TopicStatsTable()
        for answer in (await self._each(f"asking for topic {topic}", await self._holders(topic), stats)).values():
            total.offset_table.update(answer.offset_table)
            total.topic_put_tps += answer.topic_put_tps
        return total

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The consumer groups that read the topic, or have committed offsets in it, sorted. Raises NoRouteInfo."""

        async def groups(address: str) -> list[str]:
            header = TopicRequestHeader(topic=topic)
            response = await self._call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return decode_json(response.body, GroupList).group_list

        answers = await self._each(f"asking who reads {topic}", await self._holders(topic), groups)
        return sorted({group for answer in answers.values() for group in answer})

    async def _holders(self, topic: str, cluster: str | None = None) -> list[str]:
        """host:port of one replica of each broker that has the topic, of one cluster or any."""
        brokers = (await self.topic_route(topic)).broker_datas
        addresses = [any_address(broker) for broker in brokers if cluster in (None, broker.cluster)]
        found = [address for address in addresses if address]
        if not found:
            raise BrokerUnavailable(f"no broker has topic {topic!r} at the moment")
        return found
