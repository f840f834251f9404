"""Clients and their groups: heartbeats, members, offsets (`ClientManageProcessor`, `ConsumerManageProcessor`)."""

from __future__ import annotations

import asyncio
import logging

from gantrymq import clock
from gantrymq.broker.consumer_filter import ConsumerFilters
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.message_filter import MessageFilters
from gantrymq.broker.part import Part
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RemotingError, RequestRefused
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import ConsumerList, HeartbeatData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader, UnregisterClientRequestHeader
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.topic_name import retry_topic
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class Clients(Part):
    """The requests with which clients say who they are and how far they have got."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        members: GroupMembers[Connection],
        offsets: ConsumerOffsets,
        filters: MessageFilters,
        consumer_filters: ConsumerFilters,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._filters = filters
        self._consumer_filters = consumer_filters
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
        }

    def heartbeat(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A client's groups and subscriptions; makes the retry topics of its consumer groups."""
        data = decode_json(request.body, HeartbeatData)
        known = []
        for consumer in data.consumer_data_set:
            group = self._groups.get(consumer.group_name)
            if group is None:
                log.warning("client %s of unknown group %s is ignored", data.client_id, consumer.group_name)
                continue
            known.append(consumer)
            if group.retry_queue_nums > 0:
                self._topics.create_if_absent(retry_topic(group.group_name), group.retry_queue_nums)
        data.consumer_data_set = known
        changed = self._members.heartbeat(data, connection, request.language, request.version, self._loop.time())
        now_ms = clock.now_ms()
        for consumer in known:
            self._consumer_filters.register(consumer.group_name, consumer.subscription_data_set, now_ms)
        self.notify(changed)
        return RemotingCommand.response()

    def unregister(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A client leaves a group."""
        header = request.read_header(UnregisterClientRequestHeader)
        self.notify(self._members.leave(connection, header.consumer_group, header.producer_group))
        return RemotingCommand.response()

    def check_config(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Whether this broker can filter by a subscription."""
        subscription = decode_json(request.body, CheckClientRequestBody).subscription_data
        if subscription is not None:
            self._filters.check(subscription)
        return RemotingCommand.response()

    def connection_closed(self, connection: Connection) -> None:
        self.notify(self._members.drop(connection))

    def notify(self, group_names: set[str]) -> None:
        """Tells every member of these groups to look again who shares the queues."""
        for name in group_names:
            group = self._members.consumers.get(name)
            if group is None:
                self._consumer_filters.unregister(name, clock.now_ms())
            config = self._groups.get(name)
            if group is None or config is None or not config.notify_consumer_ids_changed_enable:
                continue
            for member in list(group.clients):
                try:
                    member.send_oneway(
                        RemotingCommand.request(
                            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupRequestHeader(consumer_group=name)
                        )
                    )
                except RemotingError as e:
                    log.info("member %s of group %s isn't told of the change: %s", member.address, name, e)

    def consumer_ids(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The client ids of a group's members."""
        name = request.read_header(GroupRequestHeader).consumer_group
        group = self._members.consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return RemotingCommand.response(body=encode_json(ConsumerList(group.client_ids())))

    def query_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """How far a group has got; a new group starts at 0 where the queue's whole content is still in memory."""
        header = request.read_header(QueryConsumerOffsetRequestHeader)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        may_be_zero = header.set_zero_if_not_found is not False
        if offset is None and may_be_zero and self._is_young(header.topic, header.queue_id):
            offset = 0
        if offset is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return RemotingCommand.response(header=OffsetResponseHeader(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        queue = self._store.find_queue(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return True
        stored = self._store.max_physical_offset - self._store.min_physical_offset
        return queue.min_offset <= 0 and stored <= self._store.in_memory_bytes

    def update_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A group has consumed up to an offset."""
        header = request.read_header(UpdateConsumerOffsetRequestHeader)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Not found topic: {header.topic}")
        if self._groups.find(header.consumer_group) is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        has_queue = header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
        if not has_queue and self._store.find_queue(header.topic, header.queue_id) is None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"topic {header.topic} has no queue {header.queue_id}")
        if header.queue_id < 0 or header.commit_offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"offset {header.commit_offset} of queue {header.queue_id} is illegal"
            )
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response()
