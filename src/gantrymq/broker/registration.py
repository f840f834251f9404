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
from gantrymq.broker.registration_parts import body_of, parts_of
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import BrokerError, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, KVTable
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import (
    BrokerRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context

log = peer_log(__name__)

#: How long a stopping broker waits for a NameServer to take its goodbye, in ms.
_UNREGISTER_TIMEOUT_MS = 1000
#: A NameServer that didn't answer is tried again after this many seconds, the double, ... up to the period.
_FIRST_RETRY_S = 0.5
#: So long a broker's start waits for the NameServers; one that hangs would keep it for registerBrokerTimeoutMills, s.
_START_WAIT_S = 1.0
#: More topics than these are encoded in a thread.
_FEW_TOPICS = 100


@dataclass(slots=True)
class _NameServer:
    """A NameServer, and what it is still to be told."""

    address: str
    topics: set[str] = field(default_factory=set)
    everything: bool = True
    #: It has refused a registration: the next is made in parts.
    is_split: bool = False
    #: The pause after the last failure.
    pause_s: float = 0.0
    #: It has answered once, or failed to.
    tried: asyncio.Event = field(default_factory=asyncio.Event)


class Registration(Part):
    """Registers with each NameServer apart, so that one that is down holds up no other."""

    def __init__(
        self, config: BrokerConfig, address: str, topics: BrokerTopics, replicating: Replicating, jobs: Jobs
    ) -> None:
        self._config = config
        self._address = address
        self._topics = topics
        self._replicating = replicating
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
        if self._config.broker_id < 0:
            # Its controller hasn't said yet who it is.
            return
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

    def again(self) -> None:
        """Registers everything: a NameServer's answer says who the master is."""
        self.topics_changed(())

    def role_changed(self, epoch: int) -> None:
        """A controller has made this broker master or slave; a NameServer believes the later epoch."""
        version = self._topics.table.data_version
        version.state_version = epoch
        version.advance()
        self.again()

    def config_changed(self) -> None:
        """Registers with NameServers that are new in namesrvAddr, and leaves those that aren't there any more."""
        for address in self._servers.keys() - set(self._config.namesrv_addr):
            del self._servers[address]
            self._replicating.told(address, None, None)
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
                # The work itself says when it is tried again.
                self._jobs[address] = self._all_jobs.repeating(f"register with {address}", work, after_error_s=inf)
        return added

    async def _leave(self, address: str) -> None:
        job = self._jobs[address]
        await job.stop()
        if address not in self._servers:
            # Whatever it failed at is over.
            del self._jobs[address]
            self._all_jobs.forget(job)
            await self._unregister(address)

    async def _register_again(self, address: str) -> float:
        server = self._servers.get(address)
        if server is None or self._config.broker_id < 0:
            return inf
        return await self._register(server)

    @property
    def _period_s(self) -> float:
        return self._config.register_name_server_period / 1000

    async def _register(self, server: _NameServer) -> float:
        """Registers what has changed, or everything when nothing has; returns when it is to be done again.

        Raises GantryError when the NameServer doesn't take it; it is tried again then.
        """
        topics = None if server.everything or not server.topics else server.topics
        server.topics, server.everything = set(), False
        is_registered = False
        try:
            await self._tell(server, topics)
            is_registered = True
        finally:
            # What changes while a NameServer doesn't answer must not be forgotten.
            server.everything |= not is_registered
            server.tried.set()
            if not is_registered:
                server.pause_s = min(server.pause_s * 2 or _FIRST_RETRY_S, self._period_s)
                self._jobs[server.address].wake(server.pause_s)
        server.pause_s = 0.0
        return 0.0 if server.topics or server.everything else self._period_s

    async def _tell(self, server: _NameServer, names: Collection[str] | None) -> None:
        """Registers with these topics, None for all; a NameServer keeps those that aren't named. Raises GantryError."""
        table = self._topics.table
        known = table.topic_config_table
        topics = known.copy() if names is None else {name: known[name] for name in names if name in known}
        parts = await self._parts(topics, is_split=server.is_split or self._config.enable_split_registration)
        problem: BrokerError | None = None
        for part in parts:
            if len(parts) > 1:
                # By an equal version a NameServer takes the part for known, and changes none of its topics.
                table.data_version.advance()
            try:
                await self._tell_part(server.address, body_of(part, table.data_version))
            except BrokerError as e:
                # The other parts may be taken.
                problem = e
        if problem is not None:
            # One topic that a NameServer doesn't take keeps some hundred others from being found, not all.
            server.is_split = True
            raise problem
        server.is_split &= len(parts) > 1

    async def _parts(self, topics: dict[str, TopicConfig], *, is_split: bool) -> list[bytes]:
        config = self._config
        most = config.split_registration_size if is_split else max(len(topics), 1)
        if len(topics) <= _FEW_TOPICS:
            return parts_of(topics, config.broker_permission, most)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, parts_of, topics, config.broker_permission, most)

    async def _tell_part(self, server: str, body: bytes) -> None:
        config = self._config
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=self._replicating.ha_address,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
            enable_acting_master=True if config.enable_slave_acting_master else None,
            heartbeat_timeout_millis=(
                config.broker_not_active_timeout_millis if config.enable_slave_acting_master else None
            ),
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
        response = await self._remoting.call(server, request, config.register_broker_timeout_mills)
        if config.broker_id != MASTER_ID and not config.enable_controller_mode:
            answer = response.read_header(RegisterBrokerResponseHeader)
            self._replicating.told(server, answer.master_addr, answer.ha_server_addr)
        if response.body:
            self._topics.mark_ordered(decode_json(response.body, KVTable).table)

    async def _unregister(self, server: str) -> None:
        config = self._config
        if config.broker_id < 0:
            return
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
