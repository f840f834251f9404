"""The tables of a slave are those of its master (`SlaveSynchronize`).

Topics, groups, offsets of consumers and of delay levels, what the timer says of itself, request modes. They are asked
for with Java's codes, so that a slave of either kind follows a master of either kind. Users and what they may do are
copied only where both sides check signatures: Java's brokers have a table each. What follows from the master's log is
taken once the slave's own is as long (`held_tables`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf

from gantrymq.auth.user_table import UsersFile
from gantrymq.background.jobs import Jobs
from gantrymq.broker.access_control import AccessControl
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets, OffsetTable
from gantrymq.broker.part import Part
from gantrymq.broker.pop.message_request_mode import MessageRequestModes
from gantrymq.broker.replication.credentials import inner_client_hooks
from gantrymq.broker.replication.held_tables import HeldTables, Take
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
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
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: How often all is asked for, and the timer's checkpoint; Java's slave asks every minute, and every 3 s. While no
#: master is known it is looked for so often, s.
_PERIOD_S = 10.0
_CHECKPOINT_S = 3.0
_NO_MASTER_S = 1.0
#: When a topic is missing they are asked for sooner, s.
_LEAST_PAUSE_S = 0.5
#: Whether the log has come as far as tables that are held is looked at so often, s.
_TAKE_S = 0.1
#: `BrokerOuterAPI`: large tables take their time. What is small doesn't, and is asked for again soon.
_TIMEOUT_MS = 30_000
_SMALL_TIMEOUT_MS = 3000
#: A long has fewer in Java.
_MOST_DIGITS = 20
#: What is held until the log has come as far.
_OFFSETS = "offsets of consumers"
_DELAYS = "how far delayed messages are delivered"
_CHECKPOINT = "how far the timer has got"


class MetadataSync(Part):
    """Copies the tables of the master that `replicating` follows, while the broker is a slave."""

    def __init__(
        self,
        config: BrokerConfig,
        replicating: Replicating,
        store: MessageStore,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        modes: MessageRequestModes,
        timer: Timer,
        access: AccessControl,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._replicating = replicating
        self._following = replicating.following
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._modes = modes
        self._timer = timer
        self._access = access
        self._remoting = RemotingClient(ssl_context=client_context(config), hooks=inner_client_hooks(config.auth))
        self._copying = jobs.repeating("copy the master's tables", self._copy, _PERIOD_S, after_error_s=_CHECKPOINT_S)
        self._copying_checkpoint = jobs.repeating("copy the master's timer checkpoint", self._copy_timer, _CHECKPOINT_S)
        self._taking = jobs.repeating("take the master's tables when the log has come as far", self._take)
        self._held = HeldTables()
        self._one_take = asyncio.Lock()
        self._next = 0.0
        #: The master that is asked; whether it has told all tables once.
        self._master: str | None = None
        self._asked_all = False
        #: Where the log ended when it became a slave, or topics were asked for since: those of messages before that are
        #: known, or deleted.
        self._topics_known_to: int | None = None
        #: The master whose tables were all copied once.
        self.copied_from: str | None = None

    async def become_master(self) -> None:
        """To be called before those parts take up their work whose tables are copied."""
        self._copying.cancel()
        self._copying_checkpoint.cancel()
        self._taking.cancel()
        await self._take()
        self._held.clear()
        deleted = self._offsets.log_is_from(self._store.min_physical_offset, self._store.max_physical_offset)
        if self._topics_known_to is not None:
            self._delete_old_queues(deleted)
            self._make_missing_topics(self._topics_known_to)

    async def stand_in(self) -> None:
        await self._take()
        self._held.clear()

    async def become_slave(self) -> None:
        self._topics_known_to = self._replicating.log_end
        self._copying.start(0.0)
        self._taking.start()
        if self._config.store.timer_wheel_enable:
            self._copying_checkpoint.start()

    async def stop(self) -> None:
        await self._copying.stop()
        await self._copying_checkpoint.stop()
        await self._taking.stop()
        await self._remoting.close()

    def copy_soon(self) -> None:
        """Copies the tables at once, but no sooner than a while after the last time."""
        self._copying.wake(max(self._next - monotonic(), 0.0))

    async def _copy(self) -> float:
        """Copies each table. Raises for the first that can't be; the others are copied all the same."""
        master = self._following.address
        if master is None:
            return _NO_MASTER_S
        if master != self._master:
            self._master, self._asked_all = master, False
            # The log of another may have another end.
            self._held.clear()
        self._next = monotonic() + _LEAST_PAUSE_S
        status = await self._status(master)
        if status is not None and not status.master:
            # It isn't master any more, or its machine is a new one whose tables are empty.
            return _NO_MASTER_S
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
        if not self._replicating.is_following:
            steps.insert(0, self._learn_log_begin)
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
        """For what the master has just answered: its log may be longer by now."""
        status = await self._status(master)
        if status is None:
            self._held.hold(name, 0, take)
        elif status.master:
            # It may be a slave by now, and its table that of another.
            self._held.hold(name, status.master_commit_log_max_offset, take)

    async def _status(self, master: str) -> HaStatus | None:
        """None: brokers of 4.x don't tell."""
        try:
            return HaStatus.decode(await self._ask(master, RequestCode.GET_BROKER_HA_STATUS, _SMALL_TIMEOUT_MS))
        except BrokerError:
            return None

    async def _take(self) -> float:
        """Takes what is held and the log has reached. Raises for the first that can't be; the others are taken.

        Two jobs and role changes call this, one after the other. If the caller is cancelled, the table that it was
        taking stays held, so that `become_master` takes it.
        """
        problem: Exception | None = None
        async with self._one_take:
            for name, take in self._held.reached(self._replicating.log_end):
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

    async def _learn_log_begin(self, master: str) -> None:
        """A Java master doesn't say where its log begins when it is asked for it."""
        table = decode_json(await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO), KVTable).table
        begin = table.get("commitLogMinOffset", "")
        if begin.isdecimal() and len(begin) < _MOST_DIGITS:
            self._replicating.log_begins(int(begin))

    async def _copy_topics(self, master: str) -> None:
        log_end = self._replicating.log_end
        self._topics.copy(decode_json(await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG), TopicConfigTable))
        self._topics_known_to = log_end

    def _delete_old_queues(self, deleted: Mapping[str, int]) -> None:
        """A slave keeps the queues of a deleted topic until messages of a new one come."""
        for topic, log_end in deleted.items():
            try:
                self._store.delete_queues_before(topic, log_end)
            except StoreError as e:
                # Others must not be without a master for it.
                log.warning("topic %s was deleted, and the queues that this broker has of it can't be: %s", topic, e)

    def _make_missing_topics(self, known_to: int) -> None:
        """The former master made them, and was gone before it told of them: nobody could read what it acknowledged."""
        for topic, queue_ids in self._store.topics().items():
            if self._topics.get(topic) is None and not is_system_topic(topic):
                queues = [self._store.queue(topic, queue_id) for queue_id in queue_ids]
                try:
                    last = [queue.peek(queue.max_offset - 1) for queue in queues]
                except StoreError as e:
                    # Others must not be without a master for it.
                    log.warning("topic %s may have messages that its former master hadn't told of: %s", topic, e)
                    continue
                if any(unit is not None and unit[0] >= known_to for unit in last):
                    log.warning("topic %s has messages, and the former master hadn't told of it: it is made", topic)
                    self._topics.create_if_absent(topic, queue_ids[-1] + 1)

    async def _copy_groups(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        self._groups.copy(decode_json(body, SubscriptionGroupWrapper))

    async def _copy_offsets(self, master: str) -> None:
        if _OFFSETS not in self._held:
            table = decode_json(await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET), OffsetTable)
            await self._hold(master, _OFFSETS, lambda: self._offsets.copy(table))

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
        """Only where the master shows passwords: without them nobody could sign here."""
        request = RemotingCommand.request(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader())
        # Where there are none the answer has no body.
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
    """Awaits `work`, also when the caller is cancelled: a thread may write a file, which the next call writes, too."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
