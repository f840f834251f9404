"""Tells every NameServer of this broker and its topics (`BrokerController.registerBrokerAll`, `BrokerOuterAPI`)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
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

log = peer_log(__name__)

#: How long a stopping broker waits for a NameServer to take its goodbye, in ms.
_UNREGISTER_TIMEOUT_MS = 1000
#: A NameServer that didn't answer is tried again after this many seconds, the double, ... up to the period.
_FIRST_RETRY_S = 0.5
#: So long a broker's start waits for the NameServers; one that hangs would keep it for registerBrokerTimeoutMills, s.
_START_WAIT_S = 1.0


@dataclass(slots=True)
class _NameServer:
    """A NameServer, and what it is still to be told."""

    address: str
    topics: set[str] = field(default_factory=set)
    everything: bool = True
    #: The pause after the last failure.
    pause_s: float = 0.0
    #: It has answered once, or failed to.
    tried: asyncio.Event = field(default_factory=asyncio.Event)


class Registration(Part):
    """Registers with each NameServer apart, so that one that is down holds up no other."""

    def __init__(self, config: BrokerConfig, address: str, topics: BrokerTopics, jobs: Jobs) -> None:
        self._config = config
        self._address = address
        self._topics = topics
        self._all_jobs = jobs
        self._remoting = RemotingClient(ssl_context=client_context(config))
        self._servers: dict[str, _NameServer] = {}
        self._jobs: dict[str, Repeating] = {}
        self._leaving = Tasks("unregistering")
        self._add(config.namesrv_addr)

    async def start(self) -> None:
        """Registers everywhere now, then every registerNameServerPeriod, and what changes at once.

        A NameServer that is slow to answer is not waited for.
        """
        for job in self._jobs.values():
            job.start(0.0)
        tried = [asyncio.ensure_future(server.tried.wait()) for server in self._servers.values()]
        if tried:
            _, late = await asyncio.wait(tried, timeout=_START_WAIT_S)
            for waiting in late:
                waiting.cancel()

    def topics_changed(self, names: Collection[str]) -> None:
        """Tells every NameServer of these topics; of all when no name is given."""
        for address, server in self._servers.items():
            server.topics.update(names)
            server.everything |= not names
            self._jobs[address].wake()

    def config_changed(self) -> None:
        """Registers with NameServers that are new in namesrvAddr, and leaves those that aren't there any more."""
        for address in self._servers.keys() - set(self._config.namesrv_addr):
            del self._servers[address]
            self._leaving.start(self._leave(address))
        for address in self._add(self._config.namesrv_addr):
            self._jobs[address].start(0.0)

    async def stop(self) -> None:
        """Unregisters from every NameServer that answers."""
        try:
            await self._leaving.stop()
            await asyncio.gather(*(job.stop() for job in self._jobs.values()))
            await asyncio.gather(*map(self._unregister, self._servers))
        finally:
            await self._remoting.close()

    def _add(self, addresses: Iterable[str]) -> list[str]:
        """Those of them that are new."""
        added = [address for address in dict.fromkeys(addresses) if address not in self._servers]
        for address in added:
            self._servers[address] = _NameServer(address)
            if address not in self._jobs:
                work = partial(self._register_again, address)
                self._jobs[address] = self._all_jobs.repeating(f"register with {address}", work)
        return added

    async def _leave(self, address: str) -> None:
        await self._jobs[address].stop()
        if address not in self._servers:
            await self._unregister(address)

    async def _register_again(self, address: str) -> float:
        server = self._servers.get(address)
        return inf if server is None else await self._register(server)

    @property
    def _period_s(self) -> float:
        return self._config.register_name_server_period / 1000

    async def _register(self, server: _NameServer) -> float:
        """Registers what has changed, or everything when nothing has; returns when it is to be done again."""
        topics = None if server.everything or not server.topics else server.topics
        server.topics, server.everything = set(), False
        is_registered = False
        try:
            is_registered = await self._try_register(server.address, topics)
        finally:
            # What changes while a NameServer doesn't answer must not be forgotten.
            server.everything |= not is_registered
            server.tried.set()
        if not is_registered:
            server.pause_s = min(server.pause_s * 2 or _FIRST_RETRY_S, self._period_s)
            return server.pause_s
        server.pause_s = 0.0
        return 0.0 if server.topics or server.everything else self._period_s

    async def _try_register(self, server: str, topics: Collection[str] | None) -> bool:
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
