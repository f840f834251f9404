"""Requests to list, clone and reset consumer offsets (`AdminBrokerProcessor`, `Broker2Client.resetOffset`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gantrymq.broker.admin.client_relay import ClientRelay
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import DelayLevels
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import answer_after, answer_in_pieces
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.offset import CorrectionOffsetBody, ResetOffsetBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.offset import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import group_problem
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps

if TYPE_CHECKING:
    from gantrymq.tier.tier import Tier

log = peer_log(__name__)

#: Maximum number of queues that one step of a request reads. A step takes about 0.5 ms.
_LOOKED_AT = 500
#: Maximum number of queues that one step resets.
_RESET_AT_ONCE = 1000

_MAX_LONG = 2**63 - 1
#: Values of `ResetOffsetRequestHeader.offset` that select a reset by time.
_NO_OFFSET = (None, -1)


class OffsetAdmin(Feature):
    """Handles requests about offsets. A reset publishes the event `offsets_reset`: topic, group, {queue id: offset}."""

    def __init__(self, context: BrokerContext, *, schedule: DelayLevels, relay: ClientRelay) -> None:
        self._long_requests = context.long_requests
        self._offsets_reset = context.events.offsets_reset
        self._broker_name = context.config.broker_name
        self._store = context.store
        self._tier = context.tier
        self._min_offset = context.min_offset
        self._topics = context.topics
        self._groups = context.groups
        self._members = context.members
        self._offsets = context.offsets
        self._schedule = schedule
        self._relay = relay

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all,
            RequestCode.GET_ALL_DELAY_OFFSET: self.all_delay,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
        }

    def all(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns all consumer offsets."""
        return self._long_requests.run(connection, request, answer_in_pieces(self._offsets.in_pieces()))

    def all_delay(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the delivered offsets of all delay levels."""
        return RemotingCommand.response(body=self._schedule.encoded_offsets())

    def reset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Resets a group's offsets in a topic to a time, or one queue's offset to a given value. Notifies the clients.

        Without `isForce`, a reset by time moves offsets back only. The group need not be online.
        """
        header = request.read_header(ResetOffsetRequestHeader)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        if self._groups.find(header.group) is None and not self._offsets.queues(header.group, header.topic):
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        if header.queue_id >= topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic {header.topic} has {topic.read_queue_nums} queues",
            )
        queue_ids = range(topic.read_queue_nums) if header.queue_id < 0 else [header.queue_id]
        is_by_time = header.timestamp >= 0 and (header.queue_id < 0 or header.offset in _NO_OFFSET)
        if self._tier is None or not is_by_time:
            steps = self._reset_queues(connection, request, header, queue_ids, {})
            return self._long_requests.run(connection, request, steps)
        connection.respond_with(request, self._reset_by_tier(connection, request, header, queue_ids, self._tier))
        return None

    async def _reset_by_tier(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: ResetOffsetRequestHeader,
        queue_ids: Sequence[int],
        tier: Tier,
    ) -> Reply:
        """Resets the queues to a time that may be in the tier. Raises RequestRefused if the tier can't be read."""
        older = {}
        for queue_id in queue_ids:
            queue = self._store.find_queue(header.topic, queue_id)
            if queue is None:
                continue
            if self._store.offset_by_time(queue, header.timestamp) <= queue.min_offset:
                found = await tier.offset_by_time(queue, header.timestamp)
                if found is not None:
                    older[queue_id] = found
            await asyncio.sleep(0)
        steps = self._reset_queues(connection, request, header, queue_ids, older)
        return self._long_requests.run(connection, request, steps)

    def _reset_queues(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: ResetOffsetRequestHeader,
        queue_ids: Sequence[int],
        older: Mapping[int, int],
    ) -> Steps:
        """Resets the queues in steps of `_RESET_AT_ONCE`, because a topic may have 65,536 queues.

        `older` has the offsets at the time of the request that are in the tier, by queue id.
        """
        body = ResetOffsetBody()
        for start in range(0, len(queue_ids), _RESET_AT_ONCE):
            if start:
                yield
            targets = {id_: self._target(header, id_, older) for id_ in queue_ids[start : start + _RESET_AT_ONCE]}
            self._reset(header.group, header.topic, targets)
            for queue_id, offset in targets.items():
                body.offset_table[MessageQueue(header.topic, self._broker_name, queue_id)] = offset
            log.info("%s reset group %s in topic %s to %s", connection.address, header.group, header.topic, targets)
        self._relay.push_reset(header.group, header.topic, header.timestamp, body)
        answer = RemotingCommand.response(body=(yield from body.encode_in_steps()))
        connection.respond_with(request, answer_after(self._offsets.written(), answer))
        return None

    def _reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        log_end = self._store.max_physical_offset
        for queue_id, offset in offsets.items():
            self._offsets.reset(group, topic, queue_id, offset, log_end)
        self._offsets_reset.publish(topic, group, offsets)

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int, older: Mapping[int, int]) -> int:
        queue = self._store.find_queue(header.topic, queue_id)
        first, end = (0, 0) if queue is None else (self._min_offset(queue), self._store.confirmed_end(queue))
        if header.queue_id >= 0 and header.offset not in _NO_OFFSET:
            if not first <= header.offset <= end:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{first}-{end}]",
                )
            return header.offset
        offset = end
        if queue is not None and header.timestamp >= 0:
            offset = older.get(queue_id, self._store.offset_by_time(queue, header.timestamp))
        current = self._offsets.query(header.group, header.topic, queue_id)
        return offset if header.is_force or current is None else min(offset, current)

    def clone(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Copies the offsets of one group to another, in one topic or in all topics."""
        header = request.read_header(CloneGroupOffsetRequestHeader)
        problem = group_problem(header.dest_group)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        return self._long_requests.run(connection, request, self._clone_topics(connection, request, header))

    def _clone_topics(
        self, connection: Connection, request: RemotingCommand, header: CloneGroupOffsetRequestHeader
    ) -> Steps:
        topics = [header.topic] if header.topic else sorted(self._offsets.topics_of(header.src_group))
        for number, topic in enumerate(topics):
            if number:
                yield
            if self._topics.get(topic) is None:
                continue
            if header.offline or not self._members.has_left(header.src_group, topic):
                self._offsets.clone(header.src_group, header.dest_group, topic)
                offsets = list(self._offsets.queues(header.dest_group, topic).items())
                for start in range(0, len(offsets), _RESET_AT_ONCE):
                    self._reset(header.dest_group, topic, dict(offsets[start : start + _RESET_AT_ONCE]))
                    yield
        connection.respond_with(request, answer_after(self._offsets.written()))
        return None

    def correction(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns each queue's lowest offset of all groups; Long.MAX_VALUE if it exceeds `compareGroup`'s offset."""
        return self._long_requests.run(connection, request, self._correction_in_steps(request))

    def _correction_in_steps(self, request: RemotingCommand) -> Steps:
        header = request.read_header(QueryCorrectionOffsetHeader)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        done = 0
        for group in self._offsets.groups_of(header.topic) - left_out:
            for queue_id, offset in self._offsets.queues(group, header.topic).items():
                queue = self._store.find_queue(header.topic, queue_id)
                if offset >= (self._min_offset(queue) if queue else 0):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, _MAX_LONG))
                done += 1
                if not done % _LOOKED_AT:
                    yield
        for queue_id, offset in self._offsets.queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, _MAX_LONG) > offset:
                lowest[queue_id] = _MAX_LONG
        return RemotingCommand.response(body=encode_json(CorrectionOffsetBody(lowest)))
