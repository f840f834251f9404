"""Tells every NameServer of this broker and its topics (`BrokerController.registerBrokerAll`, `BrokerOuterAPI`)."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.topic_config import (
    PERM_READ,
    PERM_WRITE,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context

log = logging.getLogger(__name__)

#: How long a stopping broker waits for a NameServer to take its goodbye, in ms.
_UNREGISTER_TIMEOUT_MS = 1000
#: A NameServer that didn't answer is tried again after this many seconds, the double, ... up to the period.
_FIRST_RETRY_S = 0.5


@dataclass(slots=True)
class _Changes:
    """What a NameServer is still to be told."""

    topics: set[str] = field(default_factory=set)
    everything: bool = False
    any: asyncio.Event = field(default_factory=asyncio.Event)


class Registration:
    """Registers with each NameServer apart, so that one that is down holds up no other."""

    def __init__(self, config: BrokerConfig, address: str, topics: BrokerTopics) -> None:
        self._config = config
        self._address = address
        self._topics = topics
        self._remoting = RemotingClient(ssl_context=client_context(config))
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: list[_Changes] = []

    async def start(self) -> None:
        """Registers everywhere once, then every registerNameServerPeriod, and what changes at once."""
        # What changes while one of them doesn't answer must not be forgotten.
        self._changes = [_Changes() for _ in self._config.namesrv_addr]
        await asyncio.gather(*(self._try_register(server) for server in self._config.namesrv_addr))
        for server, changes in zip(self._config.namesrv_addr, self._changes, strict=True):
            self._tasks.append(asyncio.create_task(self._keep_registered(server, changes)))

    def topics_changed(self, names: Collection[str]) -> None:
        """Tells every NameServer of these topics; of all when no name is given."""
        for changes in self._changes:
            changes.topics.update(names)
            changes.everything |= not names
            changes.any.set()

    async def stop(self) -> None:
        """Unregisters from every NameServer that answers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister(server) for server in self._config.namesrv_addr))
        await self._remoting.close()

    async def _keep_registered(self, server: str, changes: _Changes) -> None:
        period_s = self._config.register_name_server_period / 1000
        pause_s = period_s
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await changes.any.wait()
            except TimeoutError:
                changes.everything = True
            topics = None if changes.everything else changes.topics
            changes.any.clear()
            changes.topics, changes.everything = set(), False
            if await self._try_register(server, topics):
                pause_s = period_s
            else:
                changes.everything = True
                pause_s = min(period_s, _FIRST_RETRY_S if pause_s == period_s else pause_s * 2)

    async def _try_register(self, server: str, topics: Collection[str] | None = None) -> bool:
        timeout_ms = self._config.register_broker_timeout_mills
        try:
            response = await self._remoting.call(server, self._request(topics), timeout_ms)
            if response.body:
                self._topics.mark_ordered(decode_json(response.body, KVTable).table)
        except GantryError as e:
            log.warning("registration with NameServer %s failed: %s", server, e)
            return False
        return True

    def _request(self, topics: Collection[str] | None) -> RemotingCommand:
        """Registers this broker with `topics`, None for all; a NameServer keeps those that aren't named."""
        config = self._config
        table = self._topics.table
        if topics is not None:
            known = table.topic_config_table
            table = TopicConfigTable({name: known[name] for name in topics if name in known}, table.data_version)
        body = encode_register_body(RegisterBrokerBody(_restricted(table, config.broker_permission)))
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=f"{config.broker_ip1}:{config.ha_listen_port}",
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)

    async def _unregister(self, server: str) -> None:
        config = self._config
        header = BrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        try:
            await self._remoting.call(
                server, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header), _UNREGISTER_TIMEOUT_MS
            )
        except GantryError as e:
            log.info("NameServer %s isn't told that this broker stops: %s", server, e)


def _restricted(table: TopicConfigTable, broker_permission: int) -> TopicConfigTable:
    """The topics with what the broker itself may not do taken away."""
    if broker_permission & (PERM_READ | PERM_WRITE) == PERM_READ | PERM_WRITE:
        return table
    topics = {
        name: TopicConfig(
            name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm & broker_permission,
            topic.topic_filter_type,
            topic.topic_sys_flag,
            topic.order,
            topic.attributes,
        )
        for name, topic in table.topic_config_table.items()
    }
    return TopicConfigTable(topics, table.data_version)
