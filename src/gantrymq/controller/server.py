"""The controller server: accepts connections, takes part in leader election and replaces failed masters."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack

from gantrymq.background.jobs import Jobs
from gantrymq.controller.access import ControllerAccess
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.changes import Changes
from gantrymq.controller.config import FIXED_KEYS, SECRET_KEYS, ControllerConfig, address_for_brokers, place_of
from gantrymq.controller.config_requests import ConfigRequests
from gantrymq.controller.elections import Elections
from gantrymq.controller.etcd_store import EtcdStore
from gantrymq.controller.former_leases import MAX_LEASE_MS
from gantrymq.controller.handlers import RequestHandlers
from gantrymq.controller.heartbeats import Heartbeats
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.leases import Leases
from gantrymq.controller.live_brokers import SOONEST_MS, LiveBrokers
from gantrymq.controller.metrics import collect
from gantrymq.controller.replicas import Replicas
from gantrymq.controller.role_changes import RoleChanges
from gantrymq.controller.sqlite_store import SqliteStore
from gantrymq.controller.state_store import Leader, StateStore
from gantrymq.metrics import Metric
from gantrymq.metrics_export import MetricsOutput, with_labels
from gantrymq.remoting.address import reachable
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.file_changes import FileChanges
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.request_counts import RequestCounts
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import client_context
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)


class Controller:
    """One controller. Must be created in a running event loop.

    Raises GantryError if the port is in use, and ConfigError if the configuration is not usable.

    Args:
        config: The configuration. None uses the defaults.
        file_keys: All keys of the configuration file. Keys that the controller does not use stay in the file.
        store: The state store. None creates the configured store.

    Attributes:
        address: HOST:PORT for clients on this machine.
    """

    def __init__(
        self,
        config: ControllerConfig | None = None,
        file_keys: Mapping[str, str] | None = None,
        *,
        store: StateStore | None = None,
    ) -> None:
        self.config = config = config or ControllerConfig()
        place = place_of(config)
        access = ControllerAccess(config)
        self.jobs = Jobs()
        self.replicas = Replicas()
        self.live_brokers = LiveBrokers()
        self._file_changes = FileChanges(self.jobs)
        self._long_requests = LongRequests(self.jobs)
        client = RemotingClient(ssl_context=client_context(config), hooks=access.hooks)
        page = config.page_address(config.bind_address, config.metrics_port)
        self._metrics = MetricsOutput(config, page, self._collect, self.jobs, meter="controller")
        # Counting slows each request down slightly, so it is only done if metrics are enabled.
        self._request_counts = RequestCounts() if self._metrics.is_used else None
        handlers: dict[int, RequestHandler] = {}
        self._server = RemotingServer(
            handlers,
            ListenOptions(config.bind_address, place.port),
            tls=config,
            hooks=[self._request_counts] if self._request_counts is not None else [],
            max_idle_s=config.server_channel_max_idle_time_seconds,
            on_close=self._connection_closed,
            jobs=self.jobs,
        )
        self.address = reachable(config.bind_address, self._server.port)
        me = Leader(config.self_id, place.address or address_for_brokers(config, self._server.port))
        self.leadership = Leadership(store or self._store(), me, self.jobs, self._elected)
        leases = Leases()
        self._changes = Changes(self.replicas, self.leadership, leases)
        self._role_changes = RoleChanges(client, self.replicas)
        self.elections = Elections(
            config, self.replicas, self.live_brokers, self.leadership, self._changes, self._role_changes
        )
        self._expiring = self.jobs.repeating("look for silent brokers", self._expire, self._expire_interval_s)
        self._looking = self.jobs.repeating("look for masters that are gone", self._look, self._look_interval_s)
        requests = RequestHandlers(
            config, self.replicas, self.leadership, self._changes, self.elections, self._long_requests
        )
        heartbeats = Heartbeats(
            self.replicas, self.live_brokers, self.leadership, leases, self.elections, self._expiring.wake
        )
        configuration = Configuration(config, file_keys or {}, FIXED_KEYS, SECRET_KEYS)
        config_requests = ConfigRequests(configuration, self._file_changes, self.jobs)
        handlers |= access.guarded(requests.by_code() | heartbeats.by_code() | config_requests.by_code())
        #: The request codes that this controller answers.
        self.request_codes = frozenset(handlers)
        self._began = monotonic()
        #: The steps that `stop` has to run.
        self._running = AsyncExitStack()
        self._running.push_async_callback(client.close)
        self._running.push_async_callback(self._server.stop)

    def _store(self) -> StateStore:
        config = self.config
        if config.etcd_endpoints:
            return EtcdStore(config.etcd_endpoints, config.group)
        return SqliteStore(config.controller_store_path, self.jobs, BrokerSet.check_kept)

    async def start(self) -> None:
        """Starts to serve at `address`. Raises GantryError if the port is in use or the state is not usable.

        After an error, all started parts are stopped again.
        """
        async with self._running.pop_all() as stack:
            await self._server.bind()
            stack.push_async_callback(self._role_changes.stop)
            # Stopped before the connections close, so that the closed connections cause no elections.
            stack.push_async_callback(self.leadership.stop)
            await self.leadership.start()
            stack.push_async_callback(self.elections.stop)
            stack.push_async_callback(self._changes.stop)
            self._long_requests.start()
            self._file_changes.start()
            await self._server.serve()
            stack.push_async_callback(self._long_requests.stop)
            stack.push_async_callback(self._file_changes.stop)
            stack.push_async_callback(self._server.drain)
            stack.push_async_callback(self._metrics.stop)
            await self._metrics.start()
            self._expiring.start()
            stack.callback(self._expiring.cancel)
            # Starts later, so that brokers have time to reconnect after this controller has started.
            self._looking.start(MAX_LEASE_MS / 1000)
            stack.callback(self._looking.cancel)
            self._running = stack.pop_all()
        log.info("controller %s serves at %s", self.config.self_id, self.leadership.me.address)

    async def stop(self) -> None:
        """Answers received requests, closes all connections and stops listening. Further calls have no effect.

        If a step raises, the other steps still run, and the error is raised at the end.
        """
        await self._running.aclose()

    def _elected(self, sets: Mapping[str, bytes]) -> None:
        self.replicas.load(map(BrokerSet.decode, sets.values()))
        self._looking.wake(self.elections.begin())

    def _connection_closed(self, connection: Connection) -> None:
        self._long_requests.connection_closed(connection)
        self.elections.gone(self.live_brokers.connection_closed(connection), have_ended=True)

    @property
    def _expire_interval_s(self) -> float:
        return self.config.scan_not_active_broker_interval / 1000

    def _expire(self) -> float:
        now_ms = int(monotonic() * 1000)
        # Not closed here: these connections may be used again. Silent connections are closed by the idle timeout.
        self.elections.gone(self.live_brokers.expire(now_ms), have_ended=False)
        next_ms = self.live_brokers.next_expiry_ms()
        # The interval is read on each run, because a request may change it.
        interval_s = self._expire_interval_s
        return interval_s if next_ms is None else min(interval_s, max(next_ms - now_ms, SOONEST_MS) / 1000)

    @property
    def _look_interval_s(self) -> float:
        return self.config.scan_inactive_master_interval / 1000

    def _look(self) -> float:
        next_s = self.elections.look()
        return self._look_interval_s if next_s is None else min(next_s, self._look_interval_s)

    @property
    def metrics_port(self) -> int:
        """The port for Prometheus, after `start`; 0 without a page."""
        return self._metrics.page_port

    def _collect(self) -> Iterator[Metric]:
        # The labels that Java's controllers have (`ControllerMetricsConstant`). Those of the configuration do not
        # replace them.
        own = {"address": self.leadership.me.address, "group": self.config.group, "peer_id": self.config.self_id}
        return with_labels(self._metrics_without_labels(), self.config.metrics_labels | own)

    def _metrics_without_labels(self) -> Iterator[Metric]:
        assert self._request_counts is not None
        now = monotonic()
        yield from collect(
            self.replicas,
            self.live_brokers,
            self.elections.held,
            self._request_counts,
            self.jobs,
            is_leader=self.leadership.is_leader,
            now_ms=int(now * 1000),
            connections=len(self._server.connections),
            uptime_s=now - self._began,
        )
        yield from self._server.loop_watch.metrics()
