"""The NameServer's server: accepts connections, passes requests to handlers and removes disconnected brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import islice
from typing import cast

from gantrymq.background.jobs import Jobs
from gantrymq.logs import log_text
from gantrymq.metrics import Metric, MetricsServer
from gantrymq.namesrv.config import FIXED_KEYS, UNUSED_KEYS, NamesrvConfig
from gantrymq.namesrv.handlers import RequestHandlers
from gantrymq.namesrv.known_brokers import KnownBrokersFile
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.namesrv.metrics import collect
from gantrymq.namesrv.notifications import Notifications
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.remoting.address import reachable
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.file_changes import FileChanges
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.request_counts import RequestCounts
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import SECRET_KEYS, client_context
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: The KV configuration is logged after the first delay, then at the second interval (NamesrvController). In seconds.
KV_LOG_DELAY_S = 60.0
KV_LOG_INTERVAL_S = 600.0
#: Largest number of logged entries. Real configurations have a few.
KV_LOG_ENTRIES = 100


class NameServer:
    """One NameServer. Must be created in a running event loop.

    NameServers share no state, so brokers register with each one.

    Raises GantryError if the port is in use, and ConfigError if a TLS file is not usable.

    Args:
        config: The configuration. None uses the defaults.
        file_keys: All keys of the configuration file. Keys that the NameServer does not use stay in the file.

    Attributes:
        address: HOST:PORT for clients on this machine.
    """

    def __init__(self, config: NamesrvConfig | None = None, file_keys: Mapping[str, str] | None = None) -> None:
        self.config = config = config or NamesrvConfig()
        self.jobs = Jobs()
        self.table = RouteTable(config)
        self._configuration = Configuration(
            config, file_keys or {}, FIXED_KEYS, SECRET_KEYS, unused_defaults=UNUSED_KEYS
        )
        self._changes = FileChanges(self.jobs)
        self._kv_config = KVConfigManager(config.kv_config_path, self._changes)
        self._known_brokers = KnownBrokersFile(config.known_brokers_path, self.table, self.jobs)
        self._long_requests = LongRequests(self.jobs)
        client = RemotingClient(ssl_context=client_context(config))
        self.notifications = Notifications(client)
        handlers = RequestHandlers(
            config,
            self._configuration,
            self.table,
            self._kv_config,
            self._changes,
            self._long_requests,
            self.jobs,
            self.notifications.send,
        )
        # Counting slows each request down slightly, so it is only done if metrics are enabled.
        self._request_counts = RequestCounts() if config.metrics_port else None
        self._metrics = MetricsServer(self._collect, host=config.bind_address, port=config.metrics_port)
        self._server = RemotingServer(
            handlers.by_code(),
            ListenOptions(config.bind_address, config.listen_port),
            tls=config,
            hooks=[self._request_counts] if self._request_counts is not None else [],
            max_idle_s=config.server_channel_max_idle_time_seconds,
            on_close=self._connection_closed,
            jobs=self.jobs,
        )
        self.address = reachable(config.bind_address, self._server.port)
        #: Closed connections whose brokers are not removed from the table yet.
        self._closed: list[Connection] = []
        self._taking_away = self.jobs.repeating("take away brokers that are gone", self._take_away)
        self._scanning = self.jobs.repeating("look for silent brokers", self._scan, self._scan_interval_s)
        self._logging = self.jobs.repeating("log the KV configuration", self._log_kv_config, KV_LOG_INTERVAL_S)
        self._began = monotonic()
        #: The steps that `stop` has to run.
        self._running = AsyncExitStack()
        self._running.push_async_callback(client.close)
        # Removes the brokers whose connections this server itself closes.
        self._running.callback(self._take_away)
        self._running.push_async_callback(self._server.stop)

    async def start(self) -> None:
        """Starts to serve at `address`.

        Raises GantryError if a port is in use, and ConfigError if the KV file or a TLS file is damaged. After an error,
        all started parts are stopped again.
        """
        async with self._running.pop_all() as stack:
            await self._server.bind()
            self._kv_config.load()
            self._known_brokers.load()
            # Stopped before the connections close, so that brokers get no notification because of this stop.
            stack.push_async_callback(self.notifications.stop)
            self._taking_away.start()
            stack.callback(self._taking_away.cancel)
            self._long_requests.start()
            self._changes.start()
            await self._server.serve()
            stack.push_async_callback(self._long_requests.stop)
            stack.push_async_callback(self._changes.stop)
            stack.push_async_callback(self._server.drain)
            if self._request_counts is not None:
                stack.push_async_callback(self._metrics.stop)
                await self._metrics.start()
            self._known_brokers.start()
            # Stopped before the connections close, so that the file shows brokers as registered, not as lost.
            stack.push_async_callback(self._known_brokers.stop)
            self._scanning.start()
            stack.callback(self._scanning.cancel)
            self._logging.start(KV_LOG_DELAY_S)
            stack.callback(self._logging.cancel)
            self._running = stack.pop_all()
        for key, value in sorted(self._configuration.properties().items()):
            log.info("configuration: %s=%s", key, log_text(value))
        # Scripts wait for this line of Java's NameServer.
        log.info(
            "The Name Server boot success. serializeType=JSON, address %s:%d",
            self.config.bind_address,
            self._server.port,
        )

    async def stop(self) -> None:
        """Answers received requests, closes all connections and stops listening. Further calls have no effect.

        If a step raises, the other steps still run, and the error is raised at the end.
        """
        await self._running.aclose()

    def _collect(self) -> Iterator[Metric]:
        assert self._request_counts is not None
        uptime_s = monotonic() - self._began
        yield from collect(self.table, self._request_counts, self.jobs, len(self._server.connections), uptime_s)
        yield from self._server.loop_watch.metrics()

    def _connection_closed(self, connection: Connection) -> None:
        self._long_requests.connection_closed(connection)
        if self.table.has_registered(connection):
            self._closed.append(connection)
            self._taking_away.wake()

    def _take_away(self) -> None:
        """Removes the brokers of all closed connections in one pass over the topics, even for 10,000 connections."""
        closed, self._closed = self._closed, []
        self.notifications.send(self.table.connections_closed(closed))

    def _log_kv_config(self) -> None:
        for namespace, key, value in islice(self._kv_config.entries(), KV_LOG_ENTRIES):
            log.info("KV config %s/%s: %s", log_text(namespace), log_text(key), log_text(value))

    @property
    def _scan_interval_s(self) -> float:
        return self.config.scan_not_active_broker_interval / 1000

    def _scan(self) -> float:
        silent, changes = self.table.expire(int(monotonic() * 1000))
        for connection in silent:
            cast(Connection, connection).close()
        self.notifications.send(changes)
        # The interval is read on each run, because a request may change it.
        return self._scan_interval_s
