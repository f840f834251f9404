"""Where groups go on: read, set back, skipped forward, taken over from another group.

Source: tools/admin/DefaultMQAdminExtImpl (resetOffsetByTimestamp, resetOffsetByTimestampOld), tools/command/offset/*.
"""

from __future__ import annotations

import asyncio

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

#: A timestamp that stands for the end of a queue.
LATEST = -1


class AdminOffsets(AdminGroups):
    """The offsets that groups have committed."""

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Sends the group to the first messages stored at or after `timestamp_ms`, LATEST to the end of each queue.

        Its consumers are told; for a group without any the offsets are committed in their place. Without `force`
        no queue goes forward. Returns where each queue goes on. Raises NoRouteInfo, BrokerError for an unknown group.
        """
        route = await self.topic_route(topic)
        read_queues = {queues.broker_name: queues.read_queue_nums for queues in route.queue_datas}
        # Slaves have no offsets to set.
        masters = {b.master_address: b for b in route.broker_datas if b.master_address}

        async def reset(address: str) -> dict[MessageQueue, int]:
            header = ResetOffsetRequestHeader(
                group=group, topic=topic, timestamp=timestamp_ms, is_force=force, offset=-1
            )
            try:
                response = await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except BrokerError as e:
                # A broker with useServerSideResetOffset, the default, needs no consumer for it.
                if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                broker = masters[address]
                queue_nums = read_queues.get(broker.broker_name, 0)
                return await self._commit_offsets(broker, group, topic, queue_nums, timestamp_ms, force)
            return ResetOffsetBody.decode(response.body).offset_table

        answers = await self._each(f"resetting group {group}", masters, reset)
        return {queue: offset for answer in answers.values() for queue, offset in sorted(answer.items())}

    async def skip_accumulated(self, group: str, topic: str, *, force: bool = True) -> dict[MessageQueue, int]:
        """Sends the group to the end of each queue; what it has not consumed by now it will not see."""
        return await self.reset_offset(group, topic, LATEST, force=force)

    async def reset_queue_offset(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Sends the group to `offset` in one queue of one broker (host:port); its consumers are told."""
        await self.api.update_offset(address, group, topic, queue_id, offset, timeout_ms=self.timeout_ms)
        header = ResetOffsetRequestHeader(
            group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=0, is_force=True
        )
        try:
            await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except BrokerError as e:
            # Nobody to tell: the committed offset is enough.
            if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise

    async def committed_offset(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group goes on in a queue of one broker (host:port); None if it has committed nothing."""
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
        """Lets `target_group` go on in the topic where `source_group` stands; returns the offsets.

        Raises ClientError when the source has none in the topic, BrokerUnavailable while a broker has no master. The
        target should not be running.
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
            await self.api.update_offset(
                address, target_group, topic, queue.queue_id, offset, timeout_ms=self.timeout_ms
            )
        return offsets

    async def _commit_offsets(
        self, broker: BrokerData, group: str, topic: str, queue_nums: int, timestamp_ms: int, force: bool
    ) -> dict[MessageQueue, int]:
        """For a group without consumers: finds each queue's offset and commits it."""
        address = broker.master_address
        assert address

        async def commit(queue_id: int) -> int:
            committed = await self.committed_offset(address, group, topic, queue_id)
            if timestamp_ms == LATEST:
                offset = await self.api.max_offset(address, topic, queue_id, self.timeout_ms)
            else:
                offset = await self.api.search_offset(address, topic, queue_id, timestamp_ms, self.timeout_ms)
            if not force and committed is not None and offset > committed:
                return committed
            await self.api.update_offset(address, group, topic, queue_id, offset, timeout_ms=self.timeout_ms)
            return offset

        offsets = await asyncio.gather(*(commit(queue_id) for queue_id in range(queue_nums)))
        return {MessageQueue(topic, broker.broker_name, queue_id): offset for queue_id, offset in enumerate(offsets)}
