"""NameServer: listens, hands requests to the handlers, takes away the brokers that closed or fell silent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import islice
from typing import cast

from gantrymq.background.jobs import Jobs
from gantrymq.logs import log_text
from gantrymq.metrics import Metric, MetricsServer
from gantrymq.namesrv.config import FIXED_KEYS, NamesrvConfig
from gantrymq.namesrv.handlers import RequestHandlers
from gantrymq.namesrv.known_brokers import KnownBrokersFile
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.namesrv.metrics import collect
from gantrymq.namesrv.notifications import Notifications
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.remoting.address import reachable
from gantrymq.remoting.answered_requests import AnsweredRequests
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.file_changes import FileChanges
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import client_context
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: The KV configuration is logged after the first, then at each second interval (NamesrvController), s.
KV_LOG_DELAY_S = 60.0
KV_LOG_INTERVAL_S = 600.0
#: Not more of its entries: administrators have a few.
KV_LOG_ENTRIES = 100


class NameServer:
    """One NameServer, to be made in a running loop. NameServers don't know each other: brokers register with all.

    `file_keys` are all keys of its configuration file, those among them that it doesn't use are kept there.
    `address` is host:port for clients on this machine. Raises GantryError when the port is taken, ConfigError for TLS
    files that can't be used.
    """

    def __init__(self, config: NamesrvConfig | None = None, file_keys: Mapping[str, str] | None = None) -> None:
        self.config = config = config or NamesrvConfig()
        self.jobs = Jobs()
        self.table = RouteTable(config)
        self._configuration = Configuration(config, file_keys or {}, FIXED_KEYS)
        self._changes = FileChanges(self.jobs)
        self._kv_config = KVConfigManager(config.kv_config_path, self._changes)
        self._known_brokers = KnownBrokersFile(config.known_brokers_path, self.table, self.jobs)
        self._long_requests = LongRequests(self.jobs)
        client = RemotingClient(ssl_context=client_context(config))
        self._notifications = Notifications(client)
        handlers = RequestHandlers(
            config,
            self._configuration,
            self.table,
            self._kv_config,
            self._changes,
            self._long_requests,
            self.jobs,
            self._notifications.send,
        )
        # Counting costs each request a little: only when somebody will ask.
        self._answered = AnsweredRequests() if config.metrics_port else None
        self._metrics = MetricsServer(self._collect, host=config.bind_address, port=config.metrics_port)
        self._server = RemotingServer(
            handlers.by_code(),
            host=config.bind_address,
            port=config.listen_port,
            tls=config,
            hooks=[self._answered] if self._answered is not None else [],
            max_idle_s=config.server_channel_max_idle_time_seconds,
            on_close=self._connection_closed,
            jobs=self.jobs,
        )
        self.address = reachable(config.bind_address, self._server.port)
        #: Connections of brokers that were closed since the table was told.
        self._closed: list[Connection] = []
        self._taking_away = self.jobs.repeating("take away brokers that are gone", self._take_away)
        self._scanning = self.jobs.repeating("look for silent brokers", self._scan, self._scan_interval_s)
        self._logging = self.jobs.repeating("log the KV configuration", self._log_kv_config, KV_LOG_INTERVAL_S)
        self._began = monotonic()
        #: What `stop` has to undo.
        self._running = AsyncExitStack()
        self._running.push_async_callback(client.close)
        # Whose connections this server closes itself.
        self._running.callback(self._take_away)
        self._running.push_async_callback(self._server.stop)

    async def start(self) -> None:
        """Serves at `address`. Raises GantryError when a port is taken, ConfigError for a damaged KV or TLS file.

        What had begun by then is undone.
        """
        async with self._running.pop_all() as stack:
            await self._server.bind()
            self._kv_config.load()
            self._known_brokers.load()
            # Before the connections are closed: nobody is told what follows from that for the brokers.
            stack.push_async_callback(self._notifications.stop)
            self._taking_away.start()
            stack.callback(self._taking_away.cancel)
            self._long_requests.start()
            self._changes.start()
            await self._server.serve()
            stack.push_async_callback(self._long_requests.stop)
            stack.push_async_callback(self._changes.stop)
            stack.push_async_callback(self._server.drain)
            if self._answered is not None:
                stack.push_async_callback(self._metrics.stop)
                await self._metrics.start()
            self._known_brokers.start()
            # Stops before the connections close: brokers that are registered at the stop are not lost.
            stack.push_async_callback(self._known_brokers.stop)
            self._scanning.start()
            stack.callback(self._scanning.cancel)
            self._logging.start(KV_LOG_DELAY_S)
            stack.callback(self._logging.cancel)
            self._running = stack.pop_all()
        for key, value in sorted(self._configuration.properties().items()):
            log.info("configuration: %s=%s", key, log_text(value))
        log.info("the NameServer serves at %s", self.address)

    async def stop(self) -> None:
        """Answers what has arrived, closes every connection and stops listening; once more does no harm.

        Nothing is left out when one of it raises; that is raised at the end.
        """
        await self._running.aclose()

    def _collect(self) -> Iterator[Metric]:
        assert self._answered is not None
        uptime_s = monotonic() - self._began
        yield from collect(self.table, self._answered, self.jobs, len(self._server.connections), uptime_s)
        yield from self._server.loop_watch.metrics()

    def _connection_closed(self, connection: Connection) -> None:
        self._long_requests.connection_closed(connection)
        if self.table.has_registered(connection):
            self._closed.append(connection)
            self._taking_away.wake()

    def _take_away(self) -> None:
        """All at once: when 10,000 connections end, the topics are gone through once."""
        closed, self._closed = self._closed, []
        self._notifications.send(self.table.connections_closed(closed))

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
        self._notifications.send(changes)
        # It may be changed over the network.
        return self._scan_interval_s
