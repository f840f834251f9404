"""Broker: puts the parts together, starts and stops them in order (`BrokerController`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.access_control import AccessControl
from gantrymq.broker.acting.acting import Acting
from gantrymq.broker.acting.escaping import Escaping
from gantrymq.broker.acting.returning import Returning
from gantrymq.broker.admin.auth import AuthAdmin
from gantrymq.broker.admin.broker_config import BrokerConfigAdmin
from gantrymq.broker.admin.client_relay import ClientRelay
from gantrymq.broker.admin.connections import Connections
from gantrymq.broker.admin.consume_stats import ConsumeProgress
from gantrymq.broker.admin.groups import GroupAdmin
from gantrymq.broker.admin.messages import MessageAdmin
from gantrymq.broker.admin.offsets import OffsetAdmin
from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.admin.store import StoreAdmin
from gantrymq.broker.admin.topic_stats import TopicStats
from gantrymq.broker.admin.topics import TopicAdmin
from gantrymq.broker.appender import Appender
from gantrymq.broker.clients import Clients
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.consumer_filter import ConsumerFilters
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_lag import ConsumerLag
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.controlled.controlled import Controlled
from gantrymq.broker.controlled.uncontrolled import Uncontrolled
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.index_builder import IndexBuilder
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.broker.message_filter import MessageFilters
from gantrymq.broker.metrics import BrokerMetrics
from gantrymq.broker.new_topics import NewTopics
from gantrymq.broker.part import Part
from gantrymq.broker.pop.message_request_mode import MessageRequestModes
from gantrymq.broker.pop.query_assignment import Assignments
from gantrymq.broker.pop.service import PopService
from gantrymq.broker.pull import Pulling
from gantrymq.broker.queue_locks import QueueLocking
from gantrymq.broker.queue_offsets import QueueOffsets
from gantrymq.broker.registration import Registration
from gantrymq.broker.replication.credentials import inner_client_hooks
from gantrymq.broker.replication.ha_access import HaAccess
from gantrymq.broker.replication.metadata_sync import MetadataSync
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.broker.reply import Replies
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.role_changes import RoleChanges
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.saving import Saving
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.send import Sending
from gantrymq.broker.serving import Draining, GoingOn, Serving
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.timer.recall import Recall
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.transaction.transactions import Transactions
from gantrymq.broker.writers import FILE_NAME, Writers
from gantrymq.errors import StoreError
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.address import format_address
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import client_context
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class Broker:
    """A broker, master or slave, to be made in a running loop. `address` is what it tells NameServers and clients.

    Raises GantryError when its port is taken: records and ids carry it, so it comes before everything else.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        if config.enable_controller_mode:
            # Until the controller has said something else.
            config.broker_role, config.broker_id = BrokerRole.SLAVE, -1
        self.jobs = Jobs()
        self._handlers: dict[int, RequestHandler] = {}
        self._server = RemotingServer(
            self._handlers,
            host=config.bind_address,
            port=config.listen_port,
            fast_listen=config.fast_listen_enable,
            tls=config,
            on_close=self._connection_closed,
            jobs=self.jobs,
        )
        self.address = format_address(config.broker_ip1, self.port)
        try:
            self._build(encode_host(config.resolved_ip(), self.port))
        except BaseException:
            self._server.release()
            raise

    def _build(self, store_host: bytes) -> None:
        """Makes all parts, and says in which order they start."""
        config, jobs = self.config, self.jobs
        directory = config.store.config_directory

        # What all have in common: the store and the tables.
        self.store = store = MessageStore(config.store, store_host, jobs=jobs, waits=False)
        self.saving = saving = Saving(config, jobs, log_flushed=partial(log_flushed, store))
        self.topics = topics = BrokerTopics(config, directory / "topics.json", self._topics_changed, saving=saving)
        self.groups = groups = SubscriptionGroupTable(
            directory / "subscriptionGroup.json", auto_create=config.auto_create_subscription_group, saving=saving
        )
        self.offsets = offsets = ConsumerOffsets(directory / "consumerOffset.json", saving=saving)
        self.access = AccessControl(config, store, jobs, saving=saving)
        self.members: GroupMembers[Connection] = GroupMembers(self.access.is_same_user)
        members = self.members
        self.consumer_filters = ConsumerFilters(directory / "consumerFilter.json", saving=saving)
        self.deliveries = deliveries = Deliveries()
        filters = MessageFilters(config, members, self.consumer_filters)

        # Messages on their way in and out.
        self._remoting = RemotingClient(ssl_context=client_context(config), hooks=inner_client_hooks(config.auth))
        self._escaping = Escaping(config, self._remoting)
        long_requests = LongRequests(jobs)
        self._pulling = Pulling(
            config, store, topics, groups, filters, offsets, deliveries, jobs=jobs, long_requests=long_requests
        )
        self.polling = self._pulling.polling
        ha_access = HaAccess(config, self.access.users)
        self.replicating = replicating = Replicating(
            config, self.address, self.port, store, topics, self.polling, jobs, ha_access
        )
        self._pulling.has_master = lambda: replicating.has_master
        self.appender = appender = Appender(store, store_host, self.polling, is_of_deleted=offsets.is_of_deleted)
        delays_ms = parse_delay_levels(config.store.message_delay_level)
        self._schedule = Schedule(directory / "delayOffset.json", delays_ms, appender, jobs, saving=saving)
        self._timer = Timer(config.store, appender, jobs)
        new_topics = NewTopics(topics, jobs)
        room_waits = RoomWaits(store, jobs)
        flush_waits = FlushWaits(config, store, jobs, replicating.replicated, replicating.log_grew)
        retry = RetryTopics(appender, topics, groups, self._schedule, flush_waits, new_topics, room_waits)
        replicating.acknowledged = flush_waits.acknowledged
        self.writers = Writers(
            config, directory / FILE_NAME, appender, jobs, saving=saving, long_requests=long_requests
        )
        self._sending = Sending(
            config,
            appender,
            topics,
            self._schedule,
            self._timer,
            retry,
            flush_waits,
            long_requests=long_requests,
            new_topics=new_topics,
            room_waits=room_waits,
            writers=self.writers,
        )
        self._transactions = Transactions(
            config,
            appender,
            topics,
            members,
            offsets,
            self._sending.redirect,
            self.access.may_send,
            room_waits,
            long_requests,
            jobs,
            flush_waits,
        )
        self.pops = PopService(
            config,
            directory / "consumerOrderInfo.json",
            appender,
            self.polling,
            topics,
            groups,
            offsets,
            filters,
            retry,
            self._timer.redirect,
            deliveries,
            jobs,
            saving=saving,
            long_requests=long_requests,
            room_waits=room_waits,
        )

        self._escaping.own[self.pops.revive_topic] = self.pops.bring_back_now

        # Clients, the NameServers, administrators.
        self._clients = Clients(
            store,
            topics,
            groups,
            members,
            offsets,
            filters,
            self.consumer_filters,
            config=config,
            jobs=jobs,
            long_requests=long_requests,
            is_of_lost=self._pulling.is_of_lost,
        )
        self._registration = Registration(config, self.address, topics, replicating, jobs)
        replicating.look_again = self._registration.again
        self.acting = Acting(config, self.address, replicating, flush_waits, self._remoting, jobs)
        self.acting.register = self._registration.again
        if config.enable_slave_acting_master:
            replicating.acknowledged = self.acting.acknowledged
            replicating.stand_back = self.acting.stand_back
        self.controlled: Controlled | None = None
        if config.enable_controller_mode:
            self.controlled = Controlled(config, self.address, store, replicating, appender, flush_waits, jobs)
            self.controlled.register = self._registration.role_changed
        self.runtime = RuntimeInfo(config, store, deliveries, self._schedule, self._timer, jobs)
        relay = ClientRelay(config, store, topics, groups, members)
        modes = MessageRequestModes(config, directory / "messageRequestMode.json", topics, groups, saving=saving)
        tables = MetadataSync(
            config,
            replicating,
            store,
            topics,
            groups,
            offsets,
            self._schedule,
            modes,
            self._timer,
            self.access,
            jobs,
        )
        replicating.copy_tables = tables.copy_soon
        self._clients.lacks_tables = lambda: self._is_slave and tables.copied_from is None
        lag = ConsumerLag(store, topics, members, offsets, deliveries, self.pops.queues)
        metrics = BrokerMetrics(
            config,
            store,
            topics,
            groups,
            members,
            deliveries,
            lag,
            self.runtime,
            self._timer,
            self._transactions,
            self.pops,
            self._schedule,
            jobs,
            self._server.loop_watch,
            replicating,
            self.acting,
        )
        #: In the order in which they start; they stop in the opposite one.
        self._parts: list[Part] = [
            saving,
            self.topics,
            self.groups,
            self.offsets,
            self.consumer_filters,
            self.access,
            modes,
            self.runtime,
            IndexBuilder(store, jobs),
            StoreAdmin(store, self._sending.topics_changed, jobs, long_requests=long_requests),
            # Those below write their last into the log when they stop: slaves are to get that.
            self.controlled or Uncontrolled(),
            replicating,
            Returning(config, self.address, replicating, self._remoting, self.offsets, self._schedule, self._timer),
            tables,
            self._transactions,
            self._timer,
            self._schedule,
            self.writers,
            QueueLocking(topics, jobs),
            self.acting,
            # From here on there are requests; what stops before it may still answer.
            Serving(self._server),
            flush_waits,
            new_topics,
            room_waits,
            GoingOn(long_requests),
            Assignments(config, members, modes),
            self.pops,
            self.polling,
            self._pulling,
            self._sending,
            retry,
            Recall(config, appender, topics, self._timer, flush_waits, room_waits),
            Replies(config, self.address, appender, topics, members, flush_waits),
            self._clients,
            QueueOffsets(store, topics),
            TopicAdmin(store, topics, offsets, long_requests=long_requests, deleted=self._topics_deleted),
            TopicStats(config, store, topics, members, offsets, self.runtime, long_requests=long_requests),
            GroupAdmin(self.address, groups, members, offsets, long_requests=long_requests),
            ConsumeProgress(
                config,
                self.address,
                store,
                topics,
                groups,
                members,
                offsets,
                self.runtime,
                long_requests=long_requests,
            ),
            OffsetAdmin(
                config,
                store,
                topics,
                groups,
                members,
                offsets,
                self._schedule,
                relay,
                long_requests=long_requests,
                offsets_reset=self._offsets_reset,
            ),
            Connections(members),
            MessageAdmin(store),
            BrokerConfigAdmin(config, self._config_changed),
            AuthAdmin(self.access),
            relay,
        ]
        if config.metrics_port:
            self._parts.append(metrics)
        # Nobody is to find a broker that can't start.
        self._parts += [Draining(self._server), self._registration]
        self._roles = roles = RoleChanges(
            config,
            self._handlers,
            self._parts,
            (tables, self._transactions, self._timer, self._schedule, self.pops),
            replicating,
            appender,
            self._escaping,
            self._sending.forget_plain,
            self._config_changed,
        )
        self.acting.begin, self.acting.end = roles.stand_in, roles.stand_back
        if self.controlled is not None:
            self.controlled.make_master, self.controlled.make_slave = roles.become_master, roles.become_slave
        #: What `stop` has to undo.
        self._running = AsyncExitStack()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def _is_slave(self) -> bool:
        return self.config.broker_role is BrokerRole.SLAVE

    async def start(self) -> None:
        """Opens the store, serves, registers. Raises StoreLocked, StoreError, ConfigError or GantryError.

        What had begun by then is undone.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._server.stop)
            await self._server.bind()
            self.store.open()
            stack.callback(self.store.close)
            stack.push_async_callback(self._remoting.close)
            for part in self._parts:
                part.load()
            for handlers in (self._roles.as_master, self._roles.as_slave):
                self.access.guard(handlers)
            if not self.access.is_on:
                self._server.first_look = self._sending.first_look
            self._roles.begin(is_slave=self._is_slave)
            stack.callback(self._save_at_last)
            for part in self._parts:
                stack.push_async_callback(part.stop)
                await part.start()
                await (part.become_slave() if self._is_slave else part.become_master())
            if self.controlled is not None:
                stack.push_async_callback(self.controlled.end)
                self.controlled.begin()
            self._running = stack.pop_all()
        log.info("broker %s of %s at %s", self.config.broker_name, self.config.broker_cluster_name, self.address)

    async def stop(self) -> None:
        """Leaves the NameServers, answers what has come and who waits, closes connections, then the store.

        Nothing is left out when one of it raises; that is raised at the end. Once more does no harm.
        """
        await self._running.aclose()

    def _topics_changed(self, names: Collection[str]) -> None:
        self._sending.topics_changed(names)
        self._registration.topics_changed(names)

    def _topics_deleted(self, names: Collection[str], queues: Collection[ConsumeQueue]) -> None:
        self.pops.topics_deleted(names)
        self.deliveries.topics_deleted(names)
        self._pulling.queues_deleted(queues)

    def _offsets_reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        self._pulling.offsets_reset(topic, group, offsets)
        self.deliveries.forget_positions(topic, group, offsets)
        self.pops.offsets_reset(topic, group, offsets.keys())

    def _config_changed(self) -> None:
        self.groups.auto_create = self.config.auto_create_subscription_group
        if self.controlled is not None:
            self.controlled.config_changed()
        self.store.config_changed()
        for part in self._parts:
            part.config_changed()

    def _connection_closed(self, connection: Connection) -> None:
        for part in self._parts:
            try:
                part.connection_closed(connection)
            except Exception:
                # The others are to hear of it, too.
                log.exception("%s fails over a connection that was closed", type(part).__name__)

    def _save(self) -> None:
        """Writes what has changed. Raises what the first part raises that can't; the others are written."""
        problem: StoreError | None = None
        for part in self._parts:
            try:
                part.save()
            except StoreError as e:
                problem = problem or e
        if problem is not None:
            raise problem

    def _save_at_last(self) -> None:
        """The tables are as they were a moment ago: that is no reason not to close the store."""
        try:
            self._save()
        except StoreError as e:
            log.error("stopped without the last changes: %s", e)
