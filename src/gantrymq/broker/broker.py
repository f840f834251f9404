"""Broker: puts the parts together, starts and stops them in order (`BrokerController`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Protocol

from gantrymq.broker.access_control import WATCH_INTERVAL_S, AccessControl
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
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_filter import ConsumerFilters
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_lag import ConsumerLag
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.index_builder import IndexBuilder
from gantrymq.broker.message_filter import MessageFilters
from gantrymq.broker.metrics import BrokerMetrics
from gantrymq.broker.pop.message_request_mode import MessageRequestModes
from gantrymq.broker.pop.query_assignment import Assignments
from gantrymq.broker.pop.service import PopService
from gantrymq.broker.pull import Pulling
from gantrymq.broker.queue_locks import QueueLocking
from gantrymq.broker.queue_offsets import QueueOffsets
from gantrymq.broker.registration import Registration
from gantrymq.broker.reply import Replies
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.send import Sending
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.timer.recall import Recall
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.traffic import SAMPLE_S
from gantrymq.broker.transaction.transactions import Transactions
from gantrymq.clock import now_ms
from gantrymq.errors import StoreError
from gantrymq.metrics import MetricsServer
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.server import RemotingServer
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

#: How often clients that fell silent are looked for (`ClientHousekeepingService`), s.
_CLIENT_SCAN_S = 10.0


class HandlesRequests(Protocol):
    """A part of the broker that answers requests, by code."""

    def handlers(self) -> dict[int, RequestHandler]: ...


class Broker:
    """A master broker. `address` is what it tells NameServers and clients, once started."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._handlers: dict[int, RequestHandler] = {}
        self._server = RemotingServer(
            self._handlers,
            host=config.bind_address,
            port=config.listen_port,
            tls=config,
            on_close=self._connection_closed,
        )
        self._metrics: MetricsServer | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def address(self) -> str:
        return format_address(self.config.broker_ip1, self.port)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Opens the store, listens, registers. Raises StoreLocked, StoreError, ConfigError or GantryError."""
        config = self.config
        # The port comes first: records and ids carry it, and a taken one must leave the store alone.
        await self._server.bind()
        store_host = encode_host(config.broker_ip1, self.port)
        self.store = MessageStore(config.store, store_host)
        try:
            self.store.open()
            self._wire(store_host)
            await self._server.serve()
            await self._serve_metrics()
        except BaseException:
            await self._server.stop()
            self.store.close()
            raise
        self._schedule.start()
        self._timer.start()
        self.pops.start()
        self._transactions.start()
        self._store_admin.start()
        self._index_builder.start()
        await self._registration.start()
        self._every("tables", config.flush_consumer_offset_interval / 1000, self._save_tables)
        self._every("clients", _CLIENT_SCAN_S, self._expire_clients)
        self._every("figures", SAMPLE_S, self.runtime.sample)
        if config.auth.acl_enable:
            self._every("accounts", WATCH_INTERVAL_S, self.access.reload)
        log.info("broker %s of %s at %s", config.broker_name, config.broker_cluster_name, self.address)

    def _wire(self, store_host: bytes) -> None:
        config, store = self.config, self.store
        directory = config.store.config_directory
        self.topics = BrokerTopics(config, directory / "topics.json", self._topics_changed)
        self.groups = SubscriptionGroupTable(
            directory / "subscriptionGroup.json", auto_create=config.auto_create_subscription_group
        )
        self.offsets = ConsumerOffsets(directory / "consumerOffset.json")
        self.members: GroupMembers[Connection] = GroupMembers()
        self.consumer_filters = ConsumerFilters(directory / "consumerFilter.json")
        filters = MessageFilters(config, self.members, self.consumer_filters)
        self.deliveries = Deliveries()
        self._pulling = Pulling(config, store, self.topics, self.groups, filters, self.offsets, self.deliveries)
        self.polling = self._pulling.polling
        appender = Appender(store, store_host, self.polling)
        self._schedule = Schedule(
            directory / "delayOffset.json", parse_delay_levels(config.store.message_delay_level), appender
        )
        self._timer = Timer(config.store, appender)
        retry = RetryTopics(appender, self.topics, self.groups, self._schedule)
        flush_waits = FlushWaits(store, config.send_thread_pool_queue_capacity)
        self._sending = Sending(config, appender, self.topics, self._schedule, self._timer, retry, flush_waits)
        self._transactions = Transactions(
            config, appender, self.topics, self.members, self.offsets, self._sending.redirect
        )
        self.pops = PopService(
            config,
            directory / "consumerOrderInfo.json",
            appender,
            self.polling,
            self.topics,
            self.groups,
            self.offsets,
            filters,
            retry,
            self._timer.redirect,
            self.deliveries,
        )
        modes = MessageRequestModes(config, directory / "messageRequestMode.json", self.topics, self.groups)
        self._assignments = Assignments(config, self.members, modes)
        self._clients = Clients(
            store, self.topics, self.groups, self.members, self.offsets, filters, self.consumer_filters
        )
        self._registration = Registration(config, self.address, self.topics)
        self.access = AccessControl(config)
        tables = (self.topics, self.groups, self.offsets, self._schedule, self._timer, self.pops, modes, self.access)
        for table in tables:
            table.load()
        self.consumer_filters.load(now_ms())
        parts: list[HandlesRequests] = [
            self._sending,
            self._transactions,
            self._timer,
            Recall(config, appender, self.topics, self._timer, flush_waits),
            self._pulling,
            self.pops,
            modes,
            self._assignments,
            retry,
            Replies(config, self.address, appender, self.topics, self.members),
            self._clients,
            QueueOffsets(store, self.topics),
            *self._administration(),
        ]
        for part in parts:
            self._handlers.update(part.handlers())
        self.access.guard(self._handlers)

    def _administration(self) -> list[HandlesRequests]:
        """What answers administrators."""
        config, store, topics, groups = self.config, self.store, self.topics, self.groups
        members, offsets = self.members, self.offsets
        self.runtime = RuntimeInfo(config, store, self.deliveries, self._schedule, self._timer)
        self._locking = QueueLocking(topics)
        self._index_builder = IndexBuilder(store)
        self._store_admin = StoreAdmin(store, self._sending.topics_changed)
        relay = ClientRelay(config, store, topics, groups, members)
        return [
            TopicAdmin(store, topics, offsets),
            TopicStats(config, store, topics, members, offsets, self.runtime),
            GroupAdmin(self.address, groups, members, offsets),
            ConsumeProgress(config, self.address, store, topics, groups, members, offsets, self.runtime),
            OffsetAdmin(config, store, topics, groups, members, offsets, self._schedule, relay),
            Connections(members),
            MessageAdmin(store),
            BrokerConfigAdmin(config, self._config_changed),
            AuthAdmin(self.access.users),
            self._store_admin,
            self.runtime,
            self._locking,
            relay,
        ]

    async def _serve_metrics(self) -> None:
        config = self.config
        if config.metrics_port:
            lag = ConsumerLag(self.store, self.topics, self.members, self.offsets, self.deliveries, self.pops.queues)
            metrics = BrokerMetrics(
                config,
                self.store,
                self.topics,
                self.groups,
                self.members,
                self.deliveries,
                lag,
                self.runtime,
                self._timer,
                self._transactions,
                self.pops,
            )
            server = MetricsServer(metrics.collect, host=config.bind_address, port=config.metrics_port)
            await server.start()
            self._metrics = server

    async def stop(self) -> None:
        """Leaves the NameServers, answers what has come and who waits, closes connections, then the store."""
        for timer in self._timers.values():
            timer.cancel()
        if self._metrics is not None:
            await self._metrics.stop()
        await self._registration.stop()
        await self._server.drain()
        self.polling.stop()
        self.pops.stop()
        await self._assignments.stop()
        await self._server.stop()
        self._schedule.stop()
        await self._timer.stop()
        await self._transactions.stop()
        self._store_admin.stop()
        self._index_builder.stop()
        self._save_tables()
        self.store.close()

    def _topics_changed(self, names: Collection[str]) -> None:
        self._sending.topics_changed()
        self._registration.topics_changed(names)

    def _config_changed(self) -> None:
        self.groups.auto_create = self.config.auto_create_subscription_group
        self.topics.config_changed()

    def _connection_closed(self, connection: Connection) -> None:
        self.polling.drop(connection)
        self.pops.connection_closed(connection)
        self._clients.connection_closed(connection)

    def _save_tables(self) -> None:
        """Writes what changed. What can't be written now is tried again the next time."""
        save_filters = partial(self.consumer_filters.save, now_ms())
        for save in (self.offsets.save, self.pops.save, save_filters, self._schedule.save):
            try:
                save()
            except StoreError as e:
                log.error("%s", e)

    def _expire_clients(self) -> None:
        self._locking.expire()
        oldest = asyncio.get_running_loop().time() - self.config.channel_expired_timeout / 1000
        changed, silent = self.members.expire(oldest)
        for connection in silent:
            log.info("client %s sent no heartbeat for too long: dropped", connection.address)
            connection.close()
        self._clients.notify(changed)

    def _every(self, name: str, seconds: float, work: object) -> None:
        assert callable(work)

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("%s failed", name)
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, run)

        self._timers[name] = asyncio.get_running_loop().call_later(seconds, run)
