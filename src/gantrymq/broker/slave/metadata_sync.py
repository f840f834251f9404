"""Copies the master's tables to a slave (`SlaveSynchronize`).

The tables are topics, groups, consumer offsets, delay offsets, timer metrics and request modes. The requests use Java's
codes, so a slave works with a master of either implementation. Users and permissions are copied only if authentication
is on for both brokers. Java's brokers do not share them. A table that depends on the log is applied when the slave's
log is long enough (`PendingTables`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from math import inf
from typing import NamedTuple

import msgspec

from gantrymq.auth.user_table import UsersFile
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.credentials import inner_client_hooks
from gantrymq.broker.delay import DelayLevels, Timer
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import Replication
from gantrymq.broker.slave.pending_tables import PendingTables, Take
from gantrymq.broker.tables import OffsetTable
from gantrymq.errors import BodyError, BrokerError, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.pop import RequestModeTable
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupWrapper
from gantrymq.protocol.bodies.topic_config import TopicConfigTable
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.auth import ListAclsRequestHeader, ListUsersRequestHeader
from gantrymq.protocol.multi_dispatch import is_light_queue
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Intervals in seconds: all tables, the timer checkpoint, and the search for a master. Java uses 60 s for the tables
#: and 3 s for the checkpoint.
_PERIOD_S = 10.0
_CHECKPOINT_S = 3.0
_NO_MASTER_S = 1.0
#: Shortest time between two copies, in seconds. A missing topic or queue causes a copy before the next interval.
_LEAST_PAUSE_S = 0.5
#: Interval to check whether the log has reached pending tables, in seconds.
_TAKE_S = 0.1
#: Large tables need a long timeout (`BrokerOuterAPI`). A failed request for a small table is repeated soon.
_TIMEOUT_MS = 30_000
_SMALL_TIMEOUT_MS = 3000
#: Maximum number of digits of a number in a table. A Java long has at most 19 digits.
_MOST_DIGITS = 20
#: Names of the tables that are applied when the log is long enough.
_OFFSETS = "offsets of consumers"
_DELAYS = "how far delayed messages are delivered"
_CHECKPOINT = "how far the timer has got"
#: In the JSON of a table of offsets, if the master reports deletions of topics.
_DELETIONS_FIELD = b'"gantryDiscards":'


class _Restart(NamedTuple):
    """A queue of a deleted topic that has begun again.

    Attributes:
        physical_offset: The new queue's first record.
        deleted: The topic was deleted at this physical offset or later.
    """

    physical_offset: int
    deleted: int


class MetadataSync(Feature):
    """Copies the tables of the master that `replication` follows, while the broker is a slave."""

    def __init__(
        self, context: BrokerContext, *, replication: Replication, schedule: DelayLevels, timer: Timer
    ) -> None:
        self._config = context.config
        self._replication = replication
        self._following = replication.following
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._schedule = schedule
        self._modes = context.request_modes
        self._timer = timer
        self._access = context.access
        self._remoting = RemotingClient(
            ssl_context=client_context(context.config), hooks=inner_client_hooks(context.config.auth)
        )
        jobs = context.jobs
        self._copying = jobs.repeating("copy the master's tables", self._copy, _PERIOD_S, after_error_s=_CHECKPOINT_S)
        self._copying_checkpoint = jobs.repeating("copy the master's timer checkpoint", self._copy_timer, _CHECKPOINT_S)
        self._taking = jobs.repeating("take the master's tables when the log has come as far", self._take)
        self._held = PendingTables()
        self._one_take = asyncio.Lock()
        self._next = 0.0
        #: The master that was queried last, and whether it has returned all tables once.
        self._master: str | None = None
        self._asked_all = False
        #: End of the log when the broker became a slave, or when topics were last copied. The topics of messages before
        #: this offset are in the table, unless a topic was deleted.
        self._topics_known_to: int | None = None
        #: Deleted topics of the last copy. The slave deletes their old queues, too.
        self._deleted: Mapping[str, int] = {}
        #: The master whose tables have all been copied and applied once; None before the first.
        self.copied_from: str | None = None
        self._topics_deleted = context.events.topics_deleted
        #: (topic, queue id) of the queues that have begun again since the last copied table of offsets was applied.
        self._restarted: dict[tuple[str, int], _Restart] = {}
        #: End of the master's log before the current copy.
        self._master_end = 0
        #: A deletion that is not in the last applied table of offsets came at this physical offset or later.
        self._deletions_known_to = 0
        #: Topic -> its largest missing queue for which the tables were copied at once.
        self._copied_for: dict[str, int] = {}
        context.events.master_changed.subscribe(self._copy_soon)
        context.events.messages_replicated.subscribe(self._messages_replicated)
        context.store.replica.restart_listeners.append(self._queue_restarted)
        context.store.replica.cut_listeners.append(self._log_was_cut)
        if context.store.light is not None:
            context.store.light.restart_listeners.append(self._light_queue_restarted)

    async def become_master(self) -> None:
        """Applies the pending tables that the log has reached. Call it before the parts that use these tables start."""
        self._copying.cancel()
        self._copying_checkpoint.cancel()
        self._taking.cancel()
        await self._take()
        self._held.clear()
        # A recovery after a crash, like `gantry store rebuild`, restores queues of deleted topics.
        self._delete_old_queues(
            self._offsets.log_is_from(self._store.min_physical_offset, self._store.max_physical_offset)
        )
        if self._topics_known_to is not None:
            self._make_missing_queues(self._topics_known_to)

    async def stand_in(self) -> None:
        """Applies the pending tables before the broker becomes acting master."""
        await self._take()
        self._held.clear()

    async def become_slave(self) -> None:
        """Starts copying the master's tables."""
        self._topics_known_to = self._replication.log_end
        self._copied_for.clear()
        self._copying.start(0.0)
        self._taking.start()
        if self._config.store.timer_wheel_enable:
            self._copying_checkpoint.start()

    async def stop(self) -> None:
        await self._copying.stop()
        await self._copying_checkpoint.stop()
        await self._taking.stop()
        await self._remoting.close()

    @property
    def lacks_tables(self) -> bool:
        """Whether this broker is a slave, and some tables of its master are not copied and applied yet."""
        return self._config.broker_role is BrokerRole.SLAVE and self.copied_from is None

    def _messages_replicated(self, queues: Collection[ConsumeQueue]) -> None:
        for queue in queues:
            topic, queue_id = queue.topic, queue.queue_id
            # Nearly every queue is in the table of topics, so this check comes first.
            if queue_id < self._queue_nums(topic) or is_system_topic(topic) or is_light_queue(topic):
                continue
            # A queue that an administrator has removed is still missing after the copy.
            if queue_id > self._copied_for.get(topic, -1):
                # Consumers can't read the queue until its topic is copied, and the master may fail at any time.
                self._copied_for[topic] = queue_id
                self._copy_soon()

    def _queue_restarted(self, queue: ConsumeQueue, old_end: int, physical_offset: int) -> None:
        """Removes what belongs to a deleted topic, before the deletion is copied from the master.

        If the master fails before the next copy, groups would otherwise skip messages of the new topic, and get delayed
        and popped messages of the old one.
        """
        deleted = self._offsets.topic_begin(queue.topic)
        if deleted < old_end:
            # The deletion came after all records of the old queue, and after the last table, which lacks it. Its exact
            # offset is unknown: a later one could discard delayed messages of the new topic.
            deleted = max(old_end, self._deletions_known_to)
        self._restarted[queue.topic, queue.queue_id] = _Restart(physical_offset, deleted)
        self._remove_old(queue.topic, queue.queue_id, deleted)
        self._copied_for.pop(queue.topic, None)
        self._copy_soon()

    def _light_queue_restarted(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Removes the offsets in a lite topic that expired. The master's tables do not show that."""
        self._restarted[queue.topic, queue.queue_id] = _Restart(physical_offset, physical_offset)
        self._remove_old(queue.topic, queue.queue_id, physical_offset)
        self._copy_soon()

    def _remove_old(self, topic: str, queue_id: int, deleted: int) -> None:
        """Removes what belongs to a topic that was deleted at the physical offset `deleted` or later.

        Its pop retry topics were deleted with it. A queue with messages after `deleted` can be one of the new topic.
        """
        if is_light_queue(topic):
            self._offsets.remove_topics({topic})
            return
        groups = self._offsets.groups_of(topic)
        retry_topics = {pop_retry_topic(topic, group, v2=v2) for group in groups for v2 in (False, True)}
        topics = {topic} | {name for name in retry_topics if self._topics.get(name) is not None}
        self._offsets.remove_queue(topic, queue_id)
        self._offsets.discard_before(topics, self._store.min_physical_offset, deleted)
        for queue in self._delete_old_queues(dict.fromkeys(topics, deleted)):
            self._offsets.remove_queue(queue.topic, queue.queue_id)

    def _log_was_cut(self) -> None:
        end = self._store.max_physical_offset
        self._deletions_known_to = min(self._deletions_known_to, end)
        self._restarted = {key: restart for key, restart in self._restarted.items() if restart.physical_offset < end}

    def _queue_nums(self, topic: str) -> int:
        """Returns the number of queues that a topic has in the table; 0 if the topic is missing."""
        config = self._topics.get(topic)
        return 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)

    def _copy_soon(self) -> None:
        """Starts a copy as soon as `_LEAST_PAUSE_S` has passed after the start of the last one."""
        self._copying.wake(max(self._next - monotonic(), 0.0))

    async def _copy(self) -> float:
        """Copies each table. If some fail, copies the others and then raises the first error."""
        master = self._following.address
        if master is None:
            return _NO_MASTER_S
        if master != self._master:
            self._master, self._asked_all = master, False
            # The end of the new master's log can be different.
            self._held.clear()
        self._next = monotonic() + _LEAST_PAUSE_S
        status = await self._status(master)
        if status is not None and not status.master:
            # The broker at this address is not a master. Its tables may be empty, for example after a machine was
            # replaced.
            return _NO_MASTER_S
        self._master_end = 0 if status is None else status.master_commit_log_max_offset
        steps: list[Callable[[str], Awaitable[None]]] = [
            self._copy_topics,
            self._copy_groups,
            self._copy_offsets,
            self._copy_delays,
            self._copy_modes,
        ]
        if self._config.store.timer_wheel_enable:
            steps.append(self._copy_timer_metrics)
        if self._config.auth.authentication_enabled:
            steps.append(self._copy_users)
        if not self._replication.is_following:
            steps.insert(0, self.learn_log_begin)
        problem: Exception | None = None
        for step in steps:
            try:
                await step(master)
            except Exception as e:
                problem = problem or e
        try:
            await self._take()
        except Exception as e:
            problem = problem or e
        if problem is not None:
            raise problem
        self._asked_all = True
        self._look_whether_all_is_copied()
        return _PERIOD_S

    def _look_whether_all_is_copied(self) -> None:
        if self._asked_all and not self._held and self.copied_from != self._master:
            log.info("the tables of the master %s are copied", self._master)
            self.copied_from = self._master

    async def _hold(self, master: str, name: str, take: Take) -> None:
        """Adds a table that the master has just returned to the pending tables.

        The table may refer to the latest messages. It is applied when the slave's log reaches the current end of the
        master's log.
        """
        status = await self._status(master)
        if status is None:
            self._held.hold(name, 0, take)
        elif status.master:
            # If that broker has become a slave, the table can be a copy from another master.
            self._held.hold(name, status.master_commit_log_max_offset, take)

    async def _status(self, master: str) -> HaStatus | None:
        """Returns the replication status of the master; None for brokers of 4.x, which do not support the request."""
        try:
            return HaStatus.decode(await self._ask(master, RequestCode.GET_BROKER_HA_STATUS, _SMALL_TIMEOUT_MS))
        except BrokerError:
            return None

    async def _take(self) -> float:
        """Applies the pending tables that the log has reached. Tries all of them, then raises the first error.

        A lock serializes the calls of two jobs and of role changes. If the caller is cancelled, the current table stays
        pending, so that `become_master` applies it.
        """
        problem: Exception | None = None
        async with self._one_take:
            for name, take in self._held.reached(self._replication.log_end):
                try:
                    taken = take()
                    if taken is not None:
                        await _to_its_end(taken)
                except Exception as e:
                    problem = problem or e
                self._held.taken(name, take)
        if problem is not None:
            raise problem
        self._look_whether_all_is_copied()
        if self._held:
            self._taking.wake(_TAKE_S)
        return inf

    async def learn_log_begin(self, master: str) -> None:
        """Queries the start of the master's log. A Java master does not report it in the replication protocol."""
        table = decode_json(await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO), KVTable).table
        begin = table.get("commitLogMinOffset", "")
        if begin.isdecimal() and len(begin) < _MOST_DIGITS:
            self._replication.log_begins(int(begin))

    async def _copy_topics(self, master: str) -> None:
        log_end = self._replication.log_end
        self._topics.copy(decode_json(await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG), TopicConfigTable))
        self._topics_known_to = log_end

    def _delete_old_queues(self, deleted: Mapping[str, int]) -> list[ConsumeQueue]:
        """Deletes and returns the queues that have only messages of deleted topics.

        Otherwise, consumers would receive these messages from a new topic with the same name. `deleted` has the end of
        the log at the last deletion of each topic.
        """
        topics: list[str] = []
        queues: list[ConsumeQueue] = []
        for topic, log_end in deleted.items():
            try:
                old = self._store.delete_queues_before(topic, log_end)
            except StoreError as e:
                # This error must not prevent the broker from becoming master.
                log.warning("topic %s was deleted, and its queues on this broker can't be deleted: %s", topic, e)
                continue
            if old:
                topics.append(topic)
                queues += old
        if topics:
            self._topics_deleted.publish(topics, queues)
        return queues

    def _make_missing_queues(self, known_to: int) -> None:
        """Creates topics and queues that have messages but were not copied before the former master failed.

        Without the topic or the queue, consumers could not read acknowledged messages.
        """
        for topic, queue_ids in self._store.topics().items():
            known = self._queue_nums(topic)
            missing = [self._store.queue(topic, queue_id) for queue_id in queue_ids if queue_id >= known]
            if not missing or is_system_topic(topic):
                continue
            try:
                last = {queue.queue_id: queue.peek(queue.max_offset - 1) for queue in missing}
            except StoreError as e:
                # This error must not prevent the broker from becoming master.
                log.warning("topic %s may have messages that its former master had not reported: %s", topic, e)
                continue
            # Older messages can remain in queues that an administrator removed from the topic.
            new = [queue_id for queue_id, unit in last.items() if unit is not None and unit[0] >= known_to]
            if not new:
                continue
            count = max(new) + 1
            config = self._topics.get(topic)
            if config is None:
                log.warning("topic %s has messages, and the former master had not reported it: it is made", topic)
                self._topics.create_if_absent(topic, count)
            else:
                # Readable only: an administrator may have removed the queue, which still gets delayed messages.
                log.warning("queue %d of topic %s has messages, but the slave knew %d queues", count - 1, topic, known)
                self._topics.put(msgspec.structs.replace(config, read_queue_nums=count))

    async def _copy_groups(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        self._groups.copy(decode_json(body, SubscriptionGroupWrapper))

    async def _copy_offsets(self, master: str) -> None:
        if _OFFSETS not in self._held:
            master_end = self._master_end
            body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
            table = decode_json(body, OffsetTable)
            # The tables of Java's masters have no deletions.
            deletions_known_to = master_end if _DELETIONS_FIELD in body else 0
            await self._hold(master, _OFFSETS, lambda: self._take_offsets(table, master_end, deletions_known_to))

    def _take_offsets(self, table: OffsetTable, master_end: int, deletions_known_to: int) -> None:
        """Applies a table that was requested when the master's log ended at `master_end` or later."""
        self._offsets.copy(table)
        deleted = table.discards.deleted_topics
        older = [
            (topic, queue_id, restart.deleted)
            for (topic, queue_id), restart in self._restarted.items()
            if restart.physical_offset >= master_end and deleted.get(topic, 0) < restart.deleted
        ]
        self._restarted.clear()
        self._deletions_known_to = deletions_known_to
        self._delete_old_queues({topic: at for topic, at in deleted.items() if self._deleted.get(topic) != at})
        self._deleted = deleted
        for topic, queue_id, at in older:
            # The table is older than the deletion of the topic.
            self._remove_old(topic, queue_id, at)

    async def _copy_delays(self, master: str) -> None:
        if _DELAYS not in self._held:
            table = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
            await self._hold(master, _DELAYS, lambda: self._schedule.copy_offsets(table))

    async def _copy_modes(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        self._modes.copy(decode_json(body, RequestModeTable))

    async def _copy_timer_metrics(self, master: str) -> None:
        self._timer.copy_metrics(await self._ask(master, RequestCode.GET_TIMER_METRICS))

    async def _copy_timer(self) -> None:
        master = self._following.address
        if master is not None and _CHECKPOINT not in self._held:
            checkpoint = await self._ask(master, RequestCode.GET_TIMER_CHECK_POINT, _SMALL_TIMEOUT_MS)
            await self._hold(master, _CHECKPOINT, lambda: self._timer.copy_checkpoint(checkpoint))
            await self._take()

    async def _copy_users(self, master: str) -> None:
        """Copies users and permissions if the master returns passwords: no user could authenticate without them."""
        request = RemotingCommand.request(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader())
        # If there are no users, the response has no body.
        users = decode_json((await self._call(master, request)).body or b"[]", list[UserInfo])
        if not users or not all(user.password for user in users):
            return
        request = RemotingCommand.request(RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader())
        acls = decode_json((await self._call(master, request)).body or b"[]", list[AclInfo])
        try:
            self._access.users.copy(UsersFile(users, acls))
        except ValueError as e:
            raise BodyError(f"the users of {master} can't be read: {e}") from e

    async def _ask(self, master: str, code: int, timeout_ms: int = _TIMEOUT_MS) -> bytes:
        return (await self._call(master, RemotingCommand.request(code), timeout_ms)).body

    async def _call(self, master: str, request: RemotingCommand, timeout_ms: int = _TIMEOUT_MS) -> RemotingCommand:
        return await self._remoting.call(master, request, timeout_ms)


async def _to_its_end(work: Awaitable[None]) -> None:
    """Awaits `work` to its end even if the caller is cancelled: its thread must not write during the next call."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
