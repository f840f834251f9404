"""Brokers: configuration, run-time figures, housekeeping."""

from __future__ import annotations

from collections.abc import Mapping

from gantrymq.client.admin.base import AdminBase
from gantrymq.config import format_properties, parse_properties
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.stats import BrokerStatsData, QueryConsumeQueueResponseBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader


class AdminBrokers(AdminBase):
    """Requests to brokers, each named by its host:port."""

    async def runtime_info(self, address: str) -> dict[str, str]:
        """The broker's figures under Java's names: version, rates, totals, disk."""
        response = await self._call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_json(response.body, KVTable).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """The broker's configuration under Java's keys."""
        response = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(response.body.decode("utf-8", "replace"), source=address)

    async def update_broker_config(self, addresses: list[str], changes: Mapping[str, str]) -> None:
        """Changes keys of the brokers' configurations. Raises PartialFailure when some failed."""
        body = format_properties(changes).encode()
        await self._each(
            f"setting {', '.join(changes)}",
            addresses,
            lambda a: self._call(a, RequestCode.UPDATE_BROKER_CONFIG, body=body),
        )

    async def broker_stats(self, address: str, stats_name: str, stats_key: str) -> BrokerStatsData | None:
        """One of the broker's counters (`Stats`: TOPIC_PUT_NUMS ...) by minute, hour and day; None if it hasn't it."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=stats_name, stats_key=stats_key)
        try:
            response = await self._call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except BrokerError as e:
            # Java's answer to a key that it has not counted yet.
            if e.code == ResponseCode.SYSTEM_ERROR:
                return None
            raise
        return decode_json(response.body, BrokerStatsData)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int = 10, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """`count` units of a queue's index from offset `index` on; with `group`, whether its filter takes them."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        response = await self._call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return decode_json(response.body, QueryConsumeQueueResponseBody)

    async def clean_expired_consume_queues(self, addresses: list[str]) -> None:
        """Has brokers delete the queue files whose messages are gone."""
        await self._order("cleaning consume queues", addresses, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_expired_commit_log(self, addresses: list[str]) -> None:
        """Has brokers delete commit log files that are older than they keep them."""
        await self._order("deleting commit log files", addresses, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def clean_unused_topics(self, addresses: list[str]) -> None:
        """Has brokers delete the queues of topics that are no longer there."""
        await self._order("cleaning unused topics", addresses, RequestCode.CLEAN_UNUSED_TOPIC)

    async def _order(self, what: str, addresses: list[str], code: RequestCode) -> None:
        # Deleting gigabytes takes its time.
        await self._each(what, addresses, lambda a: self._call(a, code, timeout_ms=3 * self.timeout_ms))
