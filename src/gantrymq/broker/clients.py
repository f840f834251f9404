"""Clients and their groups: heartbeats, members, offsets (`ClientManageProcessor`, `ConsumerManageProcessor`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_filter import ConsumerFilters
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.message_filter import MessageFilters
from gantrymq.broker.part import Part
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RemotingError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import ConsumerList, HeartbeatData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader, UnregisterClientRequestHeader
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.topic_name import group_problem, retry_topic
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import LongRequests, Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Groups, and tens of their subscriptions, that are taken in in one step: 1 ms.
_STEP = 100
#: Java's ids have about 50 characters: address, process, time.
MAX_CLIENT_ID_LENGTH = 255
#: How often silent clients are looked for (`ClientHousekeepingService`), s, and how many are dropped in a turn.
_SCAN_S = 10.0
_DROPPED_AT_ONCE = 200
#: The members of a group that goes on changing are told of it so often, s, and all groups' for so long in a turn, s.
_TELL_AGAIN_S = 0.1
_TELL_TURN_S = 0.005
_TELL_STEP = 20


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
        *,
        config: BrokerConfig,
        jobs: Jobs,
        long_requests: LongRequests,
        is_of_lost: Callable[[ConsumeQueue, str, int], bool],
    ) -> None:
        self._config = config
        self._long_requests = long_requests
        self._is_of_lost = is_of_lost
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._filters = filters
        self._consumer_filters = consumer_filters
        #: At a slave: what it doesn't know its master may.
        self.lacks_tables: Callable[[], bool] = lambda: False
        self._loop = asyncio.get_running_loop()
        #: Groups whose members are to be told that they have changed; who isn't told yet of what had by the last round;
        #: when the next round may begin.
        self._changed: dict[str, None] = {}
        self._untold: Iterator[tuple[str, Connection]] = iter(())
        self._tell_at = 0.0
        self._telling = jobs.repeating("tell members of changed groups", self._tell)
        self._expiring = jobs.repeating("expire silent clients", self._expire, _SCAN_S)

    async def start(self) -> None:
        self._telling.start()
        self._expiring.start()

    async def stop(self) -> None:
        self._telling.cancel()
        self._expiring.cancel()

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
        return self._long_requests.run(connection, request, self._take_in(connection, request))

    def _take_in(self, connection: Connection, request: RemotingCommand) -> Steps:
        data = decode_request_json(request.body, HeartbeatData)
        if len(data.client_id) > MAX_CLIENT_ID_LENGTH:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the client id has {len(data.client_id)} characters: at most {MAX_CLIENT_ID_LENGTH} are taken",
            )
        now = self._loop.time()
        client = self._members.beat(data.client_id, connection, request.language, request.version, now)
        now_ms = clock.now_ms()
        for number, producer in enumerate(data.producer_data_set, 1):
            problem = group_problem(producer.group_name)
            if problem is not None:
                log.warning("client %s: %s", data.client_id, problem)
                continue
            self._members.join_producers(producer.group_name, client)
            if not number % _STEP:
                yield
        done = 0
        changed: set[str] = set()
        for consumer in data.consumer_data_set:
            done += 1 + len(consumer.subscription_data_set) // 10
            if done > _STEP:
                self.notify(changed)
                changed.clear()
                done = 0
                yield
            self._members.check_room(client, consumer.group_name)
            group = self._groups.get(consumer.group_name)
            if group is None:
                log.warning("client %s of unknown group %s is ignored", data.client_id, consumer.group_name)
                continue
            if group.retry_queue_nums > 0:
                self._topics.create_if_absent(
                    retry_topic(group.group_name), group.retry_queue_nums, unit_mode=consumer.unit_mode
                )
            if self._members.join(consumer, client):
                changed.add(consumer.group_name)
            self._register_filters(consumer.group_name, now_ms)
        changed |= self._members.leave_stale(client, now - self._config.channel_expired_timeout / 1000)
        self.notify(changed)
        return RemotingCommand.response()

    def unregister(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A client leaves a group."""
        header = request.read_header(UnregisterClientRequestHeader)
        self.notify(self._members.leave(connection, header.consumer_group, header.producer_group))
        return RemotingCommand.response()

    def check_config(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Whether this broker can filter by a subscription."""
        subscription = decode_request_json(request.body, CheckClientRequestBody).subscription_data
        if subscription is None:
            return RemotingCommand.response()
        return self._long_requests.run(connection, request, self._filters.check_in_steps(subscription))

    def connection_closed(self, connection: Connection) -> None:
        self.notify(self._members.drop(connection))

    def notify(self, group_names: Iterable[str]) -> None:
        """Tells every member of these groups, soon, to look again who shares the queues."""
        now_ms = clock.now_ms()
        for name in group_names:
            self._register_filters(name, now_ms)
            self._changed[name] = None
        if self._changed:
            self._telling.wake(max(self._tell_at - self._loop.time(), 0.0))

    def _register_filters(self, group_name: str, now_ms: int) -> None:
        """Sets the SQL92 filters of a group to those of its subscriptions in force."""
        group = self._members.consumers.get(group_name)
        self._consumer_filters.register(group_name, () if group is None else group.subscriptions.values(), now_ms)

    def _tell(self) -> float | None:
        """Tells members for some milliseconds; returns when the rest is to be told.

        What changes meanwhile gathers: when thousands join or leave, nobody is told thousands of times.
        """
        deadline = monotonic() + _TELL_TURN_S
        while True:
            for n, (group_name, member) in enumerate(self._untold, 1):
                self._tell_member(group_name, member)
                if not n % _TELL_STEP and monotonic() >= deadline:
                    return 0.0
            if not self._changed:
                return None
            pause_s = self._tell_at - self._loop.time()
            if pause_s > 0:
                return pause_s
            self._tell_at = self._loop.time() + _TELL_AGAIN_S
            group_names, self._changed = self._changed, {}
            self._untold = self._members_of(group_names)

    def _members_of(self, group_names: Iterable[str]) -> Iterator[tuple[str, Connection]]:
        """(group, member) of all that want to be told."""
        for name in group_names:
            group = self._members.consumers.get(name)
            config = self._groups.find(name)
            if group is not None and config is not None and config.notify_consumer_ids_changed_enable:
                for member in list(group.clients):
                    yield name, member

    def _tell_member(self, group_name: str, member: Connection) -> None:
        if member.is_full:
            # It doesn't listen; it looks for itself every 20 s.
            return
        header = GroupRequestHeader(consumer_group=group_name)
        try:
            member.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
        except RemotingError as e:
            log.info("member %s of group %s isn't told of the change: %s", member.address, group_name, e)

    def _expire(self) -> float | None:
        """Drops clients that sent no heartbeat for channelExpiredTimeout."""
        oldest = self._loop.time() - self._config.channel_expired_timeout / 1000
        changed, silent = self._members.expire(oldest, _DROPPED_AT_ONCE)
        for connection in silent:
            log.info("client %s sent no heartbeat for too long: dropped", connection.address)
            connection.close()
        self.notify(changed)
        return 0.0 if len(silent) == _DROPPED_AT_ONCE else None

    def consumer_ids(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The client ids of a group's members."""
        name = request.read_header(GroupRequestHeader).consumer_group
        group = self._members.consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return RemotingCommand.response(body=encode_json(ConsumerList(group.client_ids())))

    def query_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the offset of a group. A new group starts at 0 while the queue's first message is still in memory.

        As in Java, an empty queue has no such message: the client decides where it starts.
        """
        header = request.read_header(QueryConsumerOffsetRequestHeader)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        may_be_zero = header.set_zero_if_not_found is not False
        if offset is None and self.lacks_tables():
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "this slave has not copied its master's offsets yet")
        if offset is None and may_be_zero and self._is_young(header.topic, header.queue_id):
            offset = 0
        if offset is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return RemotingCommand.response(header=OffsetResponseHeader(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        queue = self._store.find_queue(topic, queue_id)
        first = queue.unit(0) if queue is not None and queue.min_offset <= 0 else None
        return first is not None and self._store.max_physical_offset - first[0] <= self._store.in_memory_bytes

    def update_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A group has consumed up to an offset."""
        header = request.read_header(UpdateConsumerOffsetRequestHeader)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Not found topic: {header.topic}")
        if self._groups.find(header.consumer_group) is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        has_queue = header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
        queue = self._store.find_queue(header.topic, header.queue_id)
        if not has_queue and queue is None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"topic {header.topic} has no queue {header.queue_id}")
        if header.queue_id < 0 or header.commit_offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"offset {header.commit_offset} of queue {header.queue_id} is illegal"
            )
        if queue is not None and self._is_of_lost(queue, header.consumer_group, header.commit_offset):
            # Its members are told with the next pull; a tool that sets the offset of a group without any isn't.
            if header.consumer_group not in self._members.consumers:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queue {header.queue_id} of {header.topic} lost its end in a crash, and {header.consumer_group}"
                    f" hasn't got to offset {header.commit_offset} since: reset its offset instead (resetOffsetByTime)",
                )
            return RemotingCommand.response()
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response()
