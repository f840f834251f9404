"""Registers the broker and its topics (BrokerController.registerBrokerAll, BrokerOuterAPI)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf

import msgspec

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import Replication
from gantrymq.broker.tables import gently
from gantrymq.errors import BrokerError, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, KVTable
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.namesrv import (
    BrokerRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context

log = peer_log(__name__)

#: Timeout of an unregistration when the broker stops, in ms.
_UNREGISTER_TIMEOUT_MS = 1000
#: Pause before the first retry after a failed registration, in seconds. It doubles up to the period.
_FIRST_RETRY_S = 0.5
#: Pause before a new registration after the connection to a NameServer is lost, in seconds. It doubles up to the
#: period if the next connection is lost as well.
_CONNECTION_LOST_PAUSE_S = 0.1
#: Longest wait of a starting broker for the NameServers, in seconds. `registerBrokerTimeoutMills` would be too long.
_START_WAIT_S = 1.0
#: If there are more topics than this, a thread encodes them.
_FEW_TOPICS = 100

#: Size limit of a body with several topics, in bytes: half of a frame.
MOST_BYTES = 8 * 1024 * 1024
#: Maximum number of topics that one call encodes. A call takes 0.1 ms.
_AT_ONCE = 100


@dataclass(slots=True)
class _NameServer:
    """A NameServer, and the changes that must still be registered with it."""

    address: str
    #: The topics that have changed.
    topics: set[str] = field(default_factory=set)
    #: All topics must be registered.
    everything: bool = True
    #: The last registration succeeded, and its connection is open.
    is_registered: bool = False
    #: The NameServer has rejected a registration, so the next one is split into parts.
    is_split: bool = False
    #: The pause after the last failure, in seconds.
    pause_s: float = 0.0
    #: The pause after the last lost connection. It is 0 if the connection lasted until the following registration.
    lost_pause_s: float = 0.0
    #: The first registration has succeeded or failed.
    tried: asyncio.Event = field(default_factory=asyncio.Event)


class Registration(Feature):
    """Registers with each NameServer in a separate job, so that a failed NameServer does not delay the others."""

    def __init__(self, context: BrokerContext, *, replication: Replication) -> None:
        self._config = context.config
        self._address = context.address
        self._topics = context.topics
        self._replication = replication
        self._all_jobs = context.jobs
        self._remoting = RemotingClient(ssl_context=client_context(context.config), on_close=self._connection_lost)
        self._servers: dict[str, _NameServer] = {}
        self._jobs: dict[str, Repeating] = {}
        self._leaving = Tasks("unregistering")
        self._is_started = False
        events = context.events
        events.topics_changed.subscribe(self._topics_changed)
        events.config_changed.subscribe(self._name_servers_changed)
        events.name_servers_changed.subscribe(self._name_servers_changed)
        events.master_uncertain.subscribe(self._register_all)

    async def start(self) -> None:
        """Starts registering: at once, then every `registerNameServerPeriod` and after changes.

        Waits up to _START_WAIT_S for the result of the first registration with each NameServer.
        """
        self._is_started = True
        self._name_servers_changed()
        if self._config.broker_id < 0:
            # The controller has not assigned an id yet.
            return
        tried = [asyncio.ensure_future(server.tried.wait()) for server in self._servers.values()]
        if tried:
            _, late = await asyncio.wait(tried, timeout=_START_WAIT_S)
            for waiting in late:
                waiting.cancel()

    def _topics_changed(self, names: Collection[str]) -> None:
        """Registers the topics with these names with every NameServer. Without names, registers all topics."""
        for address, server in self._servers.items():
            server.topics.update(names)
            server.everything |= not names
            self._jobs[address].wake()

    def _register_all(self) -> None:
        """Registers everything. The response of a NameServer contains the address of the master."""
        self._topics_changed(())

    def role_changed(self, epoch: int) -> None:
        """Registers again after a controller has changed the role. NameServers accept the highest `epoch`."""
        version = self._topics.table.data_version
        version.state_version = epoch
        version.advance()
        self._register_all()

    def _name_servers_changed(self, is_by_dns: bool = False) -> None:
        """Registers with the NameServers that are new. Unregisters from those that were removed.

        If only DNS omits a NameServer (`is_by_dns`), the broker stops registering with it but does not unregister: the
        NameServer may still be up. It removes the broker itself when registrations cease. Source:
        BrokerOuterAPI.updateNameServerAddressListByDnsLookup.

        Does nothing before `start` and after `stop`: clients must not find a broker that is not running.
        """
        if not self._is_started:
            return
        for address in self._servers.keys() - set(self._config.name_servers):
            del self._servers[address]
            self._replication.master_reported(address, None, None)
            self._leaving.start(self._leave(address, unregisters=not is_by_dns))
        for address in self._add(self._config.name_servers):
            self._jobs[address].start(0.0)

    async def stop(self) -> None:
        """Unregisters from all NameServers."""
        self._is_started = False
        try:
            await self._leaving.stop()
            await asyncio.gather(*(job.stop() for job in self._jobs.values()))
            await asyncio.gather(*map(self._unregister, self._servers))
        finally:
            await self._remoting.close()

    def _add(self, addresses: Iterable[str]) -> list[str]:
        """Adds NameServers. Returns the addresses that are new."""
        added = [address for address in dict.fromkeys(addresses) if address not in self._servers]
        for address in added:
            self._servers[address] = _NameServer(address)
            if address not in self._jobs:
                work = partial(self._register_again, address)
                # `_register` sets the time of the next run itself, even after an error.
                self._jobs[address] = self._all_jobs.repeating(f"register with {address}", work, after_error_s=inf)
        return added

    async def _leave(self, address: str, *, unregisters: bool) -> None:
        """Ends the registration with a NameServer, unless it was added again meanwhile."""
        job = self._jobs[address]
        await job.stop()
        if address not in self._servers:
            # Also removes its failures from the job report.
            del self._jobs[address]
            self._all_jobs.forget(job)
            if unregisters:
                await self._unregister(address)

    def _connection_lost(self, address: str) -> None:
        """Registers again soon: a NameServer removes a broker whose connection is lost. Retries follow after errors."""
        server = self._servers.get(address)
        if server is not None and server.is_registered:
            server.is_registered, server.everything = False, True
            server.lost_pause_s = min(server.lost_pause_s * 2 or _CONNECTION_LOST_PAUSE_S, self._period_s)
            self._jobs[address].wake(server.lost_pause_s)

    async def _register_again(self, address: str) -> float:
        server = self._servers.get(address)
        if server is None or self._config.broker_id < 0:
            return inf
        return await self._register(server)

    @property
    def _period_s(self) -> float:
        return self._config.register_name_server_period / 1000

    async def _register(self, server: _NameServer) -> float:
        """Registers the changes, or everything if nothing has changed. Returns the seconds to the next run.

        Raises GantryError if the registration fails. A retry is scheduled then.
        """
        if server.is_registered:
            server.lost_pause_s = 0.0
        topics = None if server.everything or not server.topics else server.topics
        server.topics, server.everything = set(), False
        is_registered = False
        try:
            await self._send_registration(server, topics)
            is_registered = True
        finally:
            # The failed registration may have contained changes, so the next one contains everything.
            server.everything |= not is_registered
            server.is_registered = is_registered
            server.tried.set()
            if not is_registered:
                server.pause_s = min(server.pause_s * 2 or _FIRST_RETRY_S, self._period_s)
                self._jobs[server.address].wake(server.pause_s)
        server.pause_s = 0.0
        return 0.0 if server.topics or server.everything else self._period_s

    async def _send_registration(self, server: _NameServer, names: Collection[str] | None) -> None:
        """Registers these topics; None means all. The NameServer keeps its other topics. Raises GantryError."""
        table = self._topics.table
        known = table.topic_config_table
        topics = known.copy() if names is None else {name: known[name] for name in names if name in known}
        parts = await self._parts(topics, is_split=server.is_split or self._config.enable_split_registration)
        problem: BrokerError | None = None
        for part in parts:
            if len(parts) > 1:
                # If a NameServer already has the version of a part, it ignores the part's topics.
                table.data_version.advance()
            try:
                await self._register_part(server.address, body_of(part, table.data_version))
            except BrokerError as e:
                # The NameServer may accept the other parts.
                problem = e
        if problem is not None:
            # If the registration is split, a topic that the NameServer rejects affects only the topics of the same
            # part.
            server.is_split = True
            raise problem
        server.is_split &= len(parts) > 1

    async def _parts(self, topics: dict[str, TopicConfig], *, is_split: bool) -> list[bytes]:
        """Encodes the topics: in parts of `splitRegistrationSize` if `is_split`, otherwise in as few as possible."""
        config = self._config
        most = config.split_registration_size if is_split else max(len(topics), 1)
        if len(topics) <= _FEW_TOPICS:
            return parts_of(topics, config.broker_permission, most)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, parts_of, topics, config.broker_permission, most)

    async def _register_part(self, server: str, body: bytes) -> None:
        """Sends one registration, and applies the response: the master's address and the ordered topics."""
        config = self._config
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=self._replication.ha_address,
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
            self._replication.master_reported(server, answer.master_addr, answer.ha_server_addr)
        if response.body:
            self._topics.mark_ordered(decode_json(response.body, KVTable).table)

    async def _unregister(self, server: str) -> None:
        """Unregisters from a NameServer. An error is only logged."""
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
            log.info("can't unregister from NameServer %s: %s", server, e)


def parts_of(topics: Mapping[str, TopicConfig], permission: int, most_topics: int) -> list[bytes]:
    """Returns the topics as members of JSON objects, `most_topics` in each; at least one part.

    NameServers accept frames of at most 16 MiB, which is 80,000 topics with long names. A NameServer keeps the topics
    that a registration does not name, so a registration can be split into parts, as with Java's
    `enableSplitRegistration`. Permissions that the broker itself lacks (`permission`) are removed. Runs in a thread:
    100,000 topics take 100 ms.
    """
    parts: list[bytes] = []
    pieces: list[bytes] = []
    count = size = 0
    at_once = min(_AT_ONCE, most_topics)
    for piece in gently(_pieces(topics, permission, at_once)):
        if pieces and (count + at_once > most_topics or size + len(piece) > MOST_BYTES):
            parts.append(b",".join(pieces))
            pieces, count, size = [], 0, 0
        pieces.append(piece)
        count += at_once
        size += len(piece)
    return [*parts, b",".join(pieces)]


def body_of(part: bytes, version: DataVersion) -> bytes:
    """Returns the RegisterBrokerBody with one part of the topics."""
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b},"dataVersion":%b},"filterServerList":[]}' % (
        part,
        encode_json(version),
    )


def _pieces(topics: Mapping[str, TopicConfig], permission: int, at_once: int) -> Iterator[bytes]:
    is_restricted = permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE
    entries = iter(topics.items())
    while some := dict(islice(entries, at_once)):
        if is_restricted:
            some = {name: msgspec.structs.replace(topic, perm=topic.perm & permission) for name, topic in some.items()}
        yield encode_json(some)[1:-1]
