"""NameServer: listens, hands requests to the handlers, takes away the brokers that closed or fell silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import cast

from gantrymq.errors import GantryError, RemotingError
from gantrymq.metrics import Metric, MetricsServer
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.handlers import RequestHandlers
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.namesrv.metrics import AnsweredRequests, collect
from gantrymq.namesrv.route_table import MinBrokerIdChange, RouteTable
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import NotifyMinBrokerIdChangeRequestHeader
from gantrymq.remoting.address import format_address
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import client_context

log = logging.getLogger(__name__)

#: The KV configuration is logged after the first, then at each second interval (NamesrvController), s.
KV_LOG_DELAY_S = 60.0
KV_LOG_INTERVAL_S = 600.0


class NameServer:
    """One NameServer in the running event loop. NameServers don't know each other: brokers register with all."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.config = config or NamesrvConfig()
        self.table = RouteTable(self.config)
        self._server: RemotingServer | None = None
        self._client: RemotingClient | None = None
        self._metrics: MetricsServer | None = None
        self._scan_timer: asyncio.TimerHandle | None = None
        self._kv_log_timer: asyncio.TimerHandle | None = None
        self._notifications: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serves at `address`. Raises GantryError when a port is taken, ConfigError for a damaged KV or TLS file."""
        config = self.config
        kv_config = KVConfigManager(config.kv_config_path)
        kv_config.load()
        handlers = RequestHandlers(config, self.table, kv_config, self._notify)
        client = RemotingClient(ssl_context=client_context(config))
        # Counting costs each request a little: only when somebody will ask.
        answered = AnsweredRequests() if config.metrics_port else None
        server = RemotingServer(
            handlers.by_code(),
            host=config.bind_address,
            port=config.listen_port,
            tls=config,
            hooks=[answered] if answered is not None else [],
            max_idle_s=config.server_channel_max_idle_time_seconds,
            on_close=self._connection_closed,
        )
        await server.start()
        self._server = server
        self._client = client
        if answered is not None:
            await self._serve_metrics(answered)
        self._scan_later()
        self._kv_log_timer = asyncio.get_running_loop().call_later(KV_LOG_DELAY_S, self._log_kv_config, kv_config)
        log.info("the NameServer serves at %s", self.address)

    async def stop(self) -> None:
        """Answers what has arrived, closes every connection and stops listening; once more does no harm."""
        for timer in (self._scan_timer, self._kv_log_timer):
            if timer is not None:
                timer.cancel()
        self._scan_timer = self._kv_log_timer = None
        if self._metrics is not None:
            await self._metrics.stop()
            self._metrics = None
        if self._server is not None:
            await self._server.drain()
            server, self._server = self._server, None
            await server.stop()
        for task in list(self._notifications):
            task.cancel()
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def address(self) -> str:
        """host:port for clients on this machine; the port is real after `start`."""
        host = self.config.bind_address
        port = self._server.port if self._server is not None else self.config.listen_port
        return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)

    async def _serve_metrics(self, answered: AnsweredRequests) -> None:
        started = asyncio.get_running_loop().time()

        def now() -> Iterator[Metric]:
            connections = len(self._server.connections) if self._server is not None else 0
            return collect(self.table, answered, connections, asyncio.get_running_loop().time() - started)

        metrics = MetricsServer(now, host=self.config.bind_address, port=self.config.metrics_port)
        try:
            await metrics.start()
        except GantryError:
            await self.stop()
            raise
        self._metrics = metrics

    def _connection_closed(self, connection: Connection) -> None:
        changes = self.table.connection_closed(connection)
        # A NameServer that stops closes connections itself: that says nothing of the brokers.
        if self._server is not None:
            self._notify(changes)

    def _log_kv_config(self, kv_config: KVConfigManager) -> None:
        for namespace, key, value in kv_config.entries():
            log.info("KV config %s/%s: %s", namespace, key, value)
        self._kv_log_timer = asyncio.get_running_loop().call_later(KV_LOG_INTERVAL_S, self._log_kv_config, kv_config)

    def _scan_later(self) -> None:
        interval_s = self.config.scan_not_active_broker_interval / 1000
        self._scan_timer = asyncio.get_running_loop().call_later(interval_s, self._scan)

    def _scan(self) -> None:
        silent, changes = self.table.expire(int(asyncio.get_running_loop().time() * 1000))
        for connection in silent:
            cast(Connection, connection).close()
        self._notify(changes)
        self._scan_later()

    def _notify(self, changes: Iterable[MinBrokerIdChange]) -> None:
        for change in changes:
            log.info("broker %s: the lowest id is now %d", change.broker_name, change.min_broker_id)
            for address in change.notify:
                task = asyncio.get_running_loop().create_task(self._notify_one(address, change))
                self._notifications.add(task)
                task.add_done_callback(self._notifications.discard)

    async def _notify_one(self, address: str, change: MinBrokerIdChange) -> None:
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=change.min_broker_id,
            min_broker_addr=change.min_broker_addr,
            broker_name=change.broker_name,
            offline_broker_addr=change.offline_broker_addr,
            ha_broker_addr=change.ha_broker_addr,
        )
        if self._client is None:
            return
        try:
            request = RemotingCommand.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
            await self._client.invoke_oneway(address, request)
        except RemotingError as e:
            log.warning("broker %s at %s can't be told of the lowest id: %s", change.broker_name, address, e)
