"""Brokers: configuration, statistics, replication, cleanup."""

from __future__ import annotations

from collections.abc import Mapping

from gantrymq.client.admin.base import AdminBase
from gantrymq.config import format_properties, parse_properties
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.stats import BrokerStatsData, QueryConsumeQueueResponseBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.broker_container import AddBrokerRequestHeader, RemoveBrokerRequestHeader
from gantrymq.protocol.headers.ha import ResetMasterFlushOffsetHeader
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader


class AdminBrokers(AdminBase):
    """Requests to brokers. An `address` is HOST:PORT."""

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Returns the broker's runtime statistics under Java's names: version, rates, totals, disk."""
        response = await self._call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_json(response.body, KVTable).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Returns the broker's configuration under Java's keys."""
        response = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(response.body.decode("utf-8", "replace"), source=address)

    async def update_broker_config(self, addresses: list[str], changes: Mapping[str, str]) -> None:
        """Changes keys of the brokers' configurations. Raises PartialFailure if some fail."""
        body = format_properties(changes).encode()
        await self._each(
            f"setting {', '.join(changes)}",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_BROKER_CONFIG, body=body),
        )

    async def broker_stats(self, address: str, stats_name: str, stats_key: str) -> BrokerStatsData | None:
        """Returns a counter by minute, hour and day, or None. `Stats` has the names of counters: TOPIC_PUT_NUMS ..."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=stats_name, stats_key=stats_key)
        try:
            response = await self._call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except BrokerError as e:
            # Java's response to a key that has not been counted yet.
            if e.code == ResponseCode.SYSTEM_ERROR:
                return None
            raise
        return decode_json(response.body, BrokerStatsData)

    async def add_broker_to_container(self, container: str, config_path: str) -> None:
        """Has a broker container of Java start a broker. `config_path` is a file on the container's host."""
        await self._call(container, RequestCode.ADD_BROKER, AddBrokerRequestHeader(config_path=config_path))

    async def remove_broker_from_container(self, container: str, cluster: str, name: str, broker_id: int) -> None:
        """Has a broker container of Java stop a broker. Raises BrokerError if the container doesn't have it."""
        header = RemoveBrokerRequestHeader(broker_name=name, broker_cluster_name=cluster, broker_id=broker_id)
        await self._call(container, RequestCode.REMOVE_BROKER, header)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int = 10, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """Returns `count` consume queue entries from `index` on. With `group`, also whether the filter matches."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        response = await self._call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return decode_json(response.body, QueryConsumeQueueResponseBody)

    async def clean_expired_consume_queues(self, addresses: list[str]) -> None:
        """Deletes consume queue files whose messages are deleted."""
        await self._order("cleaning consume queues", addresses, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_expired_commit_log(self, addresses: list[str]) -> None:
        """Deletes commit log files whose retention time has ended."""
        await self._order("deleting commit log files", addresses, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def clean_unused_topics(self, addresses: list[str]) -> None:
        """Deletes the queues of deleted topics."""
        await self._order("cleaning unused topics", addresses, RequestCode.CLEAN_UNUSED_TOPIC)

    async def _order(self, what: str, addresses: list[str], code: RequestCode) -> None:
        # Deleting gigabytes takes longer than other requests.
        await self._each(what, addresses, lambda a: self._call(a, code, timeout_ms=3 * self._transport.timeout_ms))

    async def ha_status(self, address: str) -> HaStatus:
        """Returns the replication state: the slaves of a master, or the progress of a slave."""
        return HaStatus.decode((await self._call(address, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def reset_master_flush_offset(self, address: str, offset: int) -> None:
        """Sets on a slave the offset up to which its master's log is flushed."""
        header = ResetMasterFlushOffsetHeader(master_flush_offset=offset)
        await self._call(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
