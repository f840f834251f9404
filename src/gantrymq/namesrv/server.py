"""NameServer: listens, hands requests to the handlers, takes away the brokers that closed or fell silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import cast

from gantrymq.errors import RemotingError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.handlers import RequestHandlers
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.namesrv.route_table import MinBrokerIdChange, RouteTable
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers import NotifyMinBrokerIdChangeRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, format_address
from gantrymq.remoting.server import RemotingServer

log = logging.getLogger(__name__)


class NameServer:
    """One NameServer in the running event loop. NameServers don't know each other: brokers register with all."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.config = config or NamesrvConfig()
        self.table = RouteTable(self.config)
        self._server: RemotingServer | None = None
        self._client: RemotingClient | None = None
        self._scan_timer: asyncio.TimerHandle | None = None
        self._notifications: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serves at `address`. Raises GantryError when the port is taken, ConfigError for a damaged KV file."""
        kv_config = KVConfigManager(self.config.kv_config_path)
        kv_config.load()
        handlers = RequestHandlers(self.config, self.table, kv_config, self._notify)
        server = RemotingServer(
            handlers.by_code(),
            host=self.config.bind_address,
            port=self.config.listen_port,
            max_idle_s=self.config.server_channel_max_idle_time_seconds,
            on_close=lambda connection: self._notify(self.table.connection_closed(connection)),
        )
        await server.start()
        self._server = server
        self._client = RemotingClient()
        self._scan_later()
        log.info("the NameServer serves at %s", self.address)

    async def stop(self) -> None:
        """Closes every connection and stops listening; once more does no harm."""
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None
        if self._server is not None:
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
