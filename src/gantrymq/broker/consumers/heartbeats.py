"""Handles heartbeats, group membership and consumer offsets (`ClientManageProcessor`, `ConsumerManageProcessor`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.pull import PullProcessor
from gantrymq.broker.slave import MetadataSync
from gantrymq.errors import RemotingError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, ConsumerList, HeartbeatData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader, UnregisterClientRequestHeader
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.multi_dispatch import MAX_NAME_LENGTH
from gantrymq.protocol.topic_name import group_problem, retry_topic
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Maximum number of groups that one step of a heartbeat handles, in 1 ms. Ten subscriptions count as one group.
_STEP = 100
#: Fields of the response, for version 2 of heartbeats (`MixAll`).
_SUPPORTS_V2_FIELD = "IS_SUPPORT_HEART_BEAT_V2"
_SUB_CHANGE_FIELD = "IS_SUB_CHANGE"
#: Longest client id, in characters. An id of a Java client has about 50: address, process, time.
MAX_CLIENT_ID_LENGTH = 255
#: Interval of the search for silent clients, in seconds (`ClientHousekeepingService`).
_SCAN_S = 10.0
#: Largest number of clients that are dropped in one event-loop iteration.
_DROPPED_AT_ONCE = 200
#: Shortest interval between two rounds of notifications, in seconds.
_TELL_AGAIN_S = 0.1
#: Longest time slice for notifications in one event-loop iteration, in seconds.
_NOTIFY_SLICE_S = 0.005
#: Number of notifications between two checks of the time.
_TELL_STEP = 20


class Heartbeats(Feature):
    """Handles client registration and consumer offsets, and notifies the members of changed groups."""

    def __init__(self, context: BrokerContext, *, pulling: PullProcessor, metadata_sync: MetadataSync) -> None:
        self._config = context.config
        self._long_requests = context.long_requests
        self._pulling = pulling
        self._metadata_sync = metadata_sync
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._members = context.members
        self._offsets = context.offsets
        self._filters = context.filters
        self._consumer_filters = context.consumer_filters
        self._loop = asyncio.get_running_loop()
        #: Changed groups, whose members are notified in the next round.
        self._changed: dict[str, None] = {}
        #: Members that have not been notified yet in the current round.
        self._untold: Iterator[tuple[str, Connection]] = iter(())
        #: Earliest start of the next round (event-loop time, in seconds).
        self._tell_at = 0.0
        self._notifying = context.jobs.repeating("notify members of changed groups", self._notify)
        self._expiring = context.jobs.repeating("expire silent clients", self._expire, _SCAN_S)
        context.events.connection_closed.subscribe(self._connection_closed)

    async def start(self) -> None:
        self._notifying.start()
        self._expiring.start()

    async def stop(self) -> None:
        self._notifying.cancel()
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
        """Handles HEART_BEAT: registers the client's groups and subscriptions, and creates missing retry topics.

        In version 2, most heartbeats have no subscriptions (`withoutSub`). If the broker needs them, the response has
        IS_SUB_CHANGE=true.
        """
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
        # Version 1 has no fingerprint. Java then responds IS_SUB_CHANGE=true.
        lacks_subscriptions = not data.heartbeat_fingerprint
        for consumer in data.consumer_data_set:
            done += 1 + len(consumer.subscription_data_set) // 10
            if done > _STEP:
                self.notify(changed)
                changed.clear()
                done = 0
                yield
            if self._config.reject_pull_consumer_enable and consumer.consume_type == CONSUME_ACTIVELY:
                # As in Java, the heartbeat succeeds. The pulls of this consumer get an error.
                continue
            self._members.check_capacity(client, consumer.group_name)
            group = self._groups.get(consumer.group_name)
            if group is None:
                log.warning("client %s of unknown group %s is ignored", data.client_id, consumer.group_name)
                continue
            if group.retry_queue_nums > 0:
                self._topics.create_if_absent(
                    retry_topic(group.group_name), group.retry_queue_nums, unit_mode=consumer.unit_mode
                )
            if data.is_without_sub:
                is_changed, is_missing = self._members.rejoin(consumer, client)
                lacks_subscriptions |= is_missing
            else:
                is_changed = self._members.join(consumer, client)
            if is_changed:
                changed.add(consumer.group_name)
            self._register_filters(consumer.group_name, now_ms)
        changed |= self._members.leave_stale(client, now - self._config.channel_expired_timeout / 1000)
        self.notify(changed)
        fields = {_SUPPORTS_V2_FIELD: "true", _SUB_CHANGE_FIELD: "true" if lacks_subscriptions else "false"}
        return RemotingCommand.response(fields=fields)

    def unregister(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles UNREGISTER_CLIENT: removes a client from a group."""
        header = request.read_header(UnregisterClientRequestHeader)
        self.notify(self._members.leave(connection, header.consumer_group, header.producer_group))
        return RemotingCommand.response()

    def check_config(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles CHECK_CLIENT_CONFIG: returns an error if this broker does not support a subscription's filter."""
        subscription = decode_request_json(request.body, CheckClientRequestBody).subscription_data
        if subscription is None:
            return RemotingCommand.response()
        return self._long_requests.run(connection, request, self._filters.check_in_steps(subscription))

    def _connection_closed(self, connection: Connection) -> None:
        self.notify(self._members.drop(connection))

    def notify(self, group_names: Iterable[str]) -> None:
        """Schedules a notification of all members of these groups, so that they rebalance the queues."""
        now_ms = clock.now_ms()
        for name in group_names:
            self._register_filters(name, now_ms)
            self._changed[name] = None
        if self._changed:
            self._notifying.wake(max(self._tell_at - self._loop.time(), 0.0))

    def _register_filters(self, group_name: str, now_ms: int) -> None:
        """Sets the SQL92 filters of a group to those of its active subscriptions."""
        group = self._members.consumers.get(group_name)
        self._consumer_filters.register(group_name, () if group is None else group.subscriptions.values(), now_ms)

    def _notify(self) -> float | None:
        """Notifies members for one time slice. Returns the delay of the next one in seconds, None if nothing is left.

        Changes during a round wait for the next round. Each member thus gets few notifications, even if thousands of
        members join or leave.
        """
        deadline = monotonic() + _NOTIFY_SLICE_S
        while True:
            for n, (group_name, member) in enumerate(self._untold, 1):
                self._notify_member(group_name, member)
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
        """Yields (group, member) for all members of groups whose configuration enables notifications."""
        for name in group_names:
            group = self._members.consumers.get(name)
            config = self._groups.find(name)
            if group is not None and config is not None and config.notify_consumer_ids_changed_enable:
                for member in list(group.clients):
                    yield name, member

    def _notify_member(self, group_name: str, member: Connection) -> None:
        if member.is_full:
            # The client reads no data from its connection. Every client also queries the members every 20 s.
            return
        header = GroupRequestHeader(consumer_group=group_name)
        try:
            member.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
        except RemotingError as e:
            log.info("can't notify member %s of group %s of the change: %s", member.address, group_name, e)

    def _expire(self) -> float | None:
        """Drops clients without a heartbeat for `channelExpiredTimeout` ms."""
        oldest = self._loop.time() - self._config.channel_expired_timeout / 1000
        changed, silent = self._members.expire(oldest, _DROPPED_AT_ONCE)
        for connection in silent:
            log.info("client %s sent no heartbeat for too long: dropped", connection.address)
            connection.close()
        self.notify(changed)
        return 0.0 if len(silent) == _DROPPED_AT_ONCE else None

    def consumer_ids(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles GET_CONSUMER_LIST_BY_GROUP: returns the client ids of a group's members."""
        name = request.read_header(GroupRequestHeader).consumer_group
        group = self._members.consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return RemotingCommand.response(body=encode_json(ConsumerList(group.client_ids())))

    def query_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles QUERY_CONSUMER_OFFSET: returns the offset of a group.

        A new group starts at 0 if the first message of the queue is still in memory. If the queue is empty, the client
        selects the start, as in Java.
        """
        header = request.read_header(QueryConsumerOffsetRequestHeader)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        may_be_zero = header.set_zero_if_not_found is not False
        if offset is None and self._metadata_sync.lacks_tables:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "this slave has not copied its master's offsets yet")
        if offset is None and may_be_zero and self._is_young(header.topic, header.queue_id):
            offset = 0
        if offset is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return RemotingCommand.response(header=OffsetResponseHeader(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        if len(topic) > MAX_NAME_LENGTH:
            # No queue has such a name, and the store would cache an empty light queue.
            return False
        queue = self._store.find_queue(topic, queue_id)
        first = queue.unit(0) if queue is not None and queue.min_offset <= 0 else None
        return first is not None and self._store.max_physical_offset - first[0] <= self._store.in_memory_bytes

    def update_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles UPDATE_CONSUMER_OFFSET: commits the offset of a group."""
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
        if queue is not None and queue.is_light and not queue.max_offset:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the light queue {header.topic} has had no message")
        if queue is not None and self._pulling.is_of_lost(queue, header.consumer_group, header.commit_offset):
            # Members get the correct offset in the response to their next pull. A tool gets an error if the group has
            # no members.
            if header.consumer_group not in self._members.consumers:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queue {header.queue_id} of {header.topic} lost its end in a crash, and {header.consumer_group}"
                    f" hasn't got to offset {header.commit_offset} since: reset its offset instead (resetOffsetByTime)",
                )
            return RemotingCommand.response()
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response()
