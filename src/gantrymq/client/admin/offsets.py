"""Offsets of groups: read, reset, skip to the end, clone from another group.

Source: tools/admin/DefaultMQAdminExtImpl (resetOffsetByTimestamp, resetOffsetByTimestampOld), tools/command/offset/*.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from gantrymq.client.admin.groups import AdminGroups
from gantrymq.client.routes import read_queues
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientError
from gantrymq.protocol.bodies.offset import ResetOffsetBody
from gantrymq.protocol.bodies.route import BrokerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import LIGHT_QUEUE_PREFIX, TIMER_TOPIC
from gantrymq.times import timestamp_ms

#: Timestamp that means the end of a queue.
LATEST = -1


class AdminOffsets(AdminGroups):
    """Requests for the committed offsets of groups."""

    async def reset_offset(
        self, group: str, topic: str, timestamp: datetime | int, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Resets the group to the first messages stored at or after a time.

        The brokers notify the group's consumers. For a group without consumers, this method commits the offsets.

        Args:
            group: Consumer group.
            topic: Topic to reset.
            timestamp: Time: a datetime, or ms since the epoch; LATEST for the end of each queue.
            force: If false, no queue moves forward. Default: True.
            cluster: For a light queue or the timer's topic: the topic whose route contains the brokers. This is the
                name of the cluster, or the light queue's parent topic. Has no effect on other topics.

        Returns:
            The new offset of each queue.

        Raises:
            NoRouteInfo: The topic has no route.
            BrokerError: The group is unknown.
        """
        at_ms = _time_ms(timestamp)
        route = await self.topic_route(_route_topic(topic, cluster))
        read_queues = {queues.broker_name: queues.read_queue_nums for queues in route.queue_datas}
        # Offsets are set on masters only.
        masters = {b.master_address: b for b in route.broker_datas if b.master_address}

        async def reset(address: str) -> dict[MessageQueue, int]:
            header = ResetOffsetRequestHeader(group=group, topic=topic, timestamp=at_ms, is_force=force, offset=-1)
            try:
                response = await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except BrokerError as e:
                # A broker with useServerSideResetOffset, which is the default, does not need a connected consumer.
                if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                broker = masters[address]
                queue_nums = read_queues.get(broker.broker_name, 0)
                return await self._commit_offsets(broker, group, topic, queue_nums, at_ms, force)
            return ResetOffsetBody.decode(response.body).offset_table

        answers = await self._each(f"resetting group {group}", masters, reset)
        return {queue: offset for answer in answers.values() for queue, offset in sorted(answer.items())}

    async def masters_of_topic(self, topic: str, cluster: str | None = None) -> list[str]:
        """Returns HOST:PORT of the topic's masters. `cluster` is that of `reset_offset`. Raises NoRouteInfo."""
        route = await self.topic_route(_route_topic(topic, cluster))
        return [broker.master_address for broker in route.broker_datas if broker.master_address]

    async def planned_offsets(
        self, group: str, topic: str, timestamp: datetime | int, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, tuple[int | None, int]]:
        """Returns the committed offset of each queue, and the new offset that `reset_offset` would set."""
        at_ms = _time_ms(timestamp)
        route = await self.topic_route(_route_topic(topic, cluster))
        masters = {b.broker_name: b.master_address for b in route.broker_datas if b.master_address}
        return {
            queue: await self._planned(masters[queue.broker_name], group, topic, queue.queue_id, at_ms, force)
            for queue in read_queues(topic, route)
            if queue.broker_name in masters
        }

    async def skip_accumulated(
        self, group: str, topic: str, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Moves the group to the end of each queue, past all messages. The arguments are those of `reset_offset`."""
        return await self.reset_offset(group, topic, LATEST, force=force, cluster=cluster)

    async def reset_queue_offset(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Resets one queue of one broker (HOST:PORT) to `offset` and notifies the consumers."""
        await self._transport.api.update_offset(
            address, group, topic, queue_id, offset, timeout_ms=self._transport.timeout_ms
        )
        header = ResetOffsetRequestHeader(
            group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=0, is_force=True
        )
        try:
            await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except BrokerError as e:
            # Without consumers, the committed offset is enough.
            if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise

    async def committed_offset(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the group's committed offset of a queue on one broker (HOST:PORT), or None."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        try:
            response = await self._call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = response.read_header(OffsetResponseHeader).offset
        return offset if offset >= 0 else None

    async def clone_offsets(self, source_group: str, target_group: str, topic: str) -> dict[MessageQueue, int]:
        """Copies the offsets of `source_group` in a topic to `target_group` and returns them.

        The target should not have running consumers. Raises ClientError if the source has no offsets in the topic, and
        BrokerUnavailable if a broker has no master.
        """
        route = await self.topic_route(topic)
        masters = {b.broker_name: b.master_address for b in route.broker_datas if b.master_address}
        offsets: dict[MessageQueue, int] = {}
        for queue in read_queues(topic, route):
            if queue.broker_name not in masters:
                raise BrokerUnavailable(f"broker {queue.broker_name!r} has no master at the moment")
            offset = await self.committed_offset(masters[queue.broker_name], source_group, topic, queue.queue_id)
            if offset is not None:
                offsets[queue] = offset
        if not offsets:
            raise ClientError(f"group {source_group!r} has no offsets in topic {topic!r}")
        for queue, offset in offsets.items():
            address = masters[queue.broker_name]
            await self._transport.api.update_offset(
                address, target_group, topic, queue.queue_id, offset, timeout_ms=self._transport.timeout_ms
            )
        return offsets

    async def _commit_offsets(
        self, broker: BrokerData, group: str, topic: str, queue_nums: int, at_ms: int, force: bool
    ) -> dict[MessageQueue, int]:
        """Commits each queue's new offset for a group without consumers."""
        address = broker.master_address
        assert address

        async def commit(queue_id: int) -> int:
            committed, offset = await self._planned(address, group, topic, queue_id, at_ms, force)
            if offset != committed:
                await self._transport.api.update_offset(
                    address, group, topic, queue_id, offset, timeout_ms=self._transport.timeout_ms
                )
            return offset

        offsets = await asyncio.gather(*(commit(queue_id) for queue_id in range(queue_nums)))
        return {MessageQueue(topic, broker.broker_name, queue_id): offset for queue_id, offset in enumerate(offsets)}

    async def _planned(
        self, address: str, group: str, topic: str, queue_id: int, at_ms: int, force: bool
    ) -> tuple[int | None, int]:
        """Returns the committed offset of a queue, and the one after a reset."""
        committed = await self.committed_offset(address, group, topic, queue_id)
        if at_ms == LATEST:
            offset = await self._transport.api.max_offset(address, topic, queue_id, self._transport.timeout_ms)
        else:
            offset = await self._transport.api.search_offset(
                address, topic, queue_id, at_ms, self._transport.timeout_ms
            )
        if not force and committed is not None:
            offset = min(offset, committed)
        return committed, offset


def _route_topic(topic: str, cluster: str | None) -> str:
    """Returns the topic whose route has the brokers of `topic`. Source: `DefaultMQAdminExtImpl`."""
    has_no_route = topic.startswith(LIGHT_QUEUE_PREFIX) or topic == TIMER_TOPIC
    return cluster if cluster and has_no_route else topic


def _time_ms(timestamp: datetime | int) -> int:
    """Returns LATEST, or the time in ms since the epoch. Raises ClientError."""
    return LATEST if timestamp == LATEST else timestamp_ms("timestamp", timestamp)
