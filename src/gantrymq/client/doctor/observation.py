"""Requests the state of each NameServer and broker and stores the responses and errors, without conclusions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gantrymq.background.failures import JobFailures
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.groups_seen import MAX_GROUPS, GroupSeen, dead_letter_counts, groups_seen
from gantrymq.client.doctor.one_group import OneGroup, observe_group
from gantrymq.client.doctor.rights import CONFIGURATION, FIGURES, GROUPS, SENDING, send_refusal
from gantrymq.client.sync_state_sets import SyncStateSetSeen, sync_state_set
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, PartialFailure, RouteNotReady
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.route import MASTER_ID, ClusterInfo, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_WRITE, TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, DLQ_TOPIC_PREFIX
from gantrymq.system import clock, tls

MAX_CONCURRENT = 32

# Format of StoreStatsService.getFormatRuntime.
_RUNTIME = re.compile(r"\[ *(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds *\]")


@dataclass(slots=True)
class NameServerSeen:
    """State of one NameServer. If there is an `error`, all other values are empty."""

    address: str
    error: GantryError | None = None
    cluster: ClusterInfo = field(default_factory=ClusterInfo)
    #: Names of all topics; None if the NameServer does not list them (enableAllTopicList=false).
    topics: frozenset[str] | None = None
    #: Route of the checked topic, or None.
    route: TopicRouteData | None = None
    #: Route of TBW102, which contains the brokers that create topics automatically.
    auto_create_route: TopicRouteData | None = None
    #: Background jobs that failed since the start.
    failed_jobs: list[JobFailures] = field(default_factory=list)
    #: Error of the request for a route, other than a missing route.
    route_error: GantryError | None = None

    @property
    def brokers(self) -> dict[tuple[str, int], str]:
        """HOST:PORT by (broker name, broker id)."""
        return {
            (name, broker_id): address
            for name, broker in self.cluster.broker_addr_table.items()
            for broker_id, address in broker.broker_addrs.items()
        }


@dataclass(slots=True)
class BrokerSeen:
    """State of one broker at its advertised address. Values that an old broker does not support are empty."""

    cluster: str
    name: str
    broker_id: int
    address: str
    #: Error of a request, if the broker is unreachable. A rejected request is not an error, as the broker responds.
    error: GantryError | None = None
    runtime: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    #: The checked topic on the broker, or None.
    topic: TopicConfig | None = None
    #: Difference between the broker's clock and the local one, s; None if unknown.
    clock_ahead_s: float | None = None
    #: Replicas and sync-state set. Each is None if the broker does not support its request, or has no controllers.
    ha_status: HaStatus | None = None
    sync_state_set: SyncStateSetSeen | None = None
    #: Rejected requests: the requested data, and the broker's error.
    refusals: dict[str, BrokerError] = field(default_factory=dict)

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    @property
    def leads(self) -> bool:
        """Whether the broker's own configuration says that it is a master. NameServers and controllers may disagree."""
        return self.config.get("brokerRole") in ("SYNC_MASTER", "ASYNC_MASTER")

    @property
    def label(self) -> str:
        return f"broker {self.name} ({'master' if self.is_master else f'slave {self.broker_id}'})"


@dataclass(slots=True)
class Observation:
    """All responses. `brokers` contains the brokers of all NameServers."""

    topic: str | None
    name_servers: list[NameServerSeen]
    brokers: list[BrokerSeen] = field(default_factory=list)
    #: Whether the requests used TLS.
    over_tls: bool = False
    #: Whether the requests were signed.
    is_signed: bool = False
    #: All consumer groups, or only the groups of the checked topic; at most MAX_GROUPS.
    groups: list[GroupSeen] = field(default_factory=list)
    group_count: int = 0
    group: OneGroup | None = None
    #: Replicas that are registered with a controller, but with no NameServer.
    unregistered: list[BrokerSeen] = field(default_factory=list)
    dead_letters: dict[str, int] = field(default_factory=dict)

    @property
    def answering(self) -> list[NameServerSeen]:
        return [seen for seen in self.name_servers if seen.error is None]


async def observe(
    name_servers: Sequence[str],
    topic: str | None,
    *,
    group: str | None = None,
    ssl_context: tls.SSLContext | None,
    credentials: Credentials | None,
    timeout_ms: int,
) -> Observation:
    """Sends requests to all servers, each with the timeout `timeout_ms`. With `group`, other groups are left out."""
    seen = Observation(
        topic,
        await asyncio.gather(
            *(_name_server(address, topic, ssl_context, credentials, timeout_ms) for address in name_servers)
        ),
        over_tls=ssl_context is not None,
        is_signed=credentials is not None,
    )
    found = {
        (broker.cluster, name, broker_id, address): None
        for name_server in seen.answering
        for name, broker in sorted(name_server.cluster.broker_addr_table.items())
        for broker_id, address in sorted(broker.broker_addrs.items())
    }
    limit = asyncio.Semaphore(MAX_CONCURRENT)

    async def ask(admin: AdminClient, broker: BrokerSeen) -> BrokerSeen:
        async with limit:
            await _ask_broker(admin, broker, topic)
        return broker

    async with AdminClient(ssl_context=ssl_context, credentials=credentials, timeout=timeout_ms / 1000) as admin:
        seen.brokers = await asyncio.gather(*(ask(admin, BrokerSeen(*identity)) for identity in found))
        seen.unregistered = await asyncio.gather(*(ask(admin, broker) for broker in _unregistered(seen.brokers)))
        for broker in seen.brokers:
            if topic is not None and broker.error is None and _takes_messages(seen, broker):
                with suppress(GantryError):
                    refusal = await send_refusal(admin, broker.address, topic)
                    if refusal is not None:
                        broker.refusals[SENDING] = refusal
    await _look_at_groups(seen, group, ssl_context, credentials, timeout_ms)
    return seen


def _unregistered(brokers: Sequence[BrokerSeen]) -> list[BrokerSeen]:
    """Returns replicas that only the controllers of `brokers` have, with the controllers' broker ids."""
    registered = {broker.address for broker in brokers}
    found: dict[str, BrokerSeen] = {}
    for broker in brokers:
        info = broker.sync_state_set.info if broker.sync_state_set is not None else None
        if info is not None:
            for replica in (*info.in_sync_replicas, *info.not_in_sync_replicas):
                address = replica.broker_address
                if address not in registered:
                    found[address] = BrokerSeen(broker.cluster, broker.name, replica.broker_id, address)
    return list(found.values())


def _takes_messages(seen: Observation, broker: BrokerSeen) -> bool:
    return broker.is_master and any(
        data.broker_name == broker.name and data.perm & PERM_WRITE
        for name_server in seen.answering
        if name_server.route is not None
        for data in name_server.route.queue_datas
    )


async def _look_at_groups(
    seen: Observation,
    group: str | None,
    ssl_context: tls.SSLContext | None,
    credentials: Credentials | None,
    timeout_ms: int,
) -> None:
    masters = [broker for broker in seen.brokers if broker.is_master and broker.error is None]
    has_topic = any(name_server.route is not None for name_server in seen.answering)
    if not masters or (seen.topic is not None and not has_topic):
        return
    servers = [server.address for server in seen.answering]
    async with AdminClient(
        servers, ssl_context=ssl_context, credentials=credentials, timeout=timeout_ms / 1000
    ) as admin:
        try:
            if group is not None:
                seen.group = await observe_group(admin, group, {broker.address: broker.name for broker in masters})
            else:
                addresses = [broker.address for broker in masters]
                seen.groups, seen.group_count = await groups_seen(admin, addresses, seen.topic)
                seen.dead_letters = await dead_letter_counts(admin, _dead_letter_topics(seen))
        except PartialFailure as e:
            refused = [error for error in e.failed.values() if isinstance(error, BrokerError)]
            for broker in masters:
                for error in refused:
                    if error.address == broker.address:
                        _note(broker, GROUPS, error)
        except BrokerError as e:
            for broker in masters:
                if broker.address == e.address:
                    _note(broker, GROUPS, e)
        except GantryError:
            # A broker has just stopped; the next diagnosis reports it.
            pass


def _dead_letter_topics(seen: Observation) -> list[str]:
    """Returns the dead-letter topics of all groups, or of the groups of the checked topic."""
    all_topics = frozenset[str]().union(*(server.topics or () for server in seen.answering))
    topics = sorted(topic for topic in all_topics if topic.startswith(DLQ_TOPIC_PREFIX))
    if seen.topic is not None:
        wanted = {DLQ_TOPIC_PREFIX + group.name for group in seen.groups}
        topics = [topic for topic in topics if topic in wanted]
    return topics[:MAX_GROUPS]


def _note(broker: BrokerSeen, what: str, error: BrokerError) -> None:
    """Stores the error if a permission is missing. Any other error means that the broker is too old for the request."""
    if error.code == ResponseCode.NO_PERMISSION:
        broker.refusals[what] = error


async def _name_server(
    address: str,
    topic: str | None,
    ssl_context: tls.SSLContext | None,
    credentials: Credentials | None,
    timeout_ms: int,
) -> NameServerSeen:
    seen = NameServerSeen(address)
    async with AdminClient(
        [address], ssl_context=ssl_context, credentials=credentials, timeout=timeout_ms / 1000
    ) as admin:
        try:
            seen.cluster = await admin.cluster_info()
            with suppress(BrokerError, PartialFailure):
                seen.failed_jobs = (await admin.failed_name_server_jobs())[address]
            with suppress(BrokerError):  # enableAllTopicList=false
                seen.topics = frozenset(await admin.topic_list())
            try:
                seen.auto_create_route = await _route(admin, AUTO_CREATE_TOPIC)
                seen.route = await _route(admin, topic) if topic is not None else None
            except (BrokerError, RouteNotReady) as e:
                seen.route_error = e
        except GantryError as e:
            seen.error = e
    return seen


async def _route(admin: AdminClient, topic: str) -> TopicRouteData | None:
    """Returns None if the NameServer does not have the topic. Raises RouteNotReady shortly after its start."""
    try:
        return await admin.topic_route(topic)
    except RouteNotReady:
        raise
    except NoRouteInfo:
        return None


async def _ask_broker(admin: AdminClient, broker: BrokerSeen, topic: str | None) -> None:
    try:
        # A rejected request still shows that the broker is reachable.
        try:
            asked_s = clock.time()
            broker.runtime = await admin.runtime_info(broker.address)
            broker.clock_ahead_s = clock_ahead_s(broker.runtime, (asked_s + clock.time()) / 2)
        except BrokerError as e:
            _note(broker, FIGURES, e)
        try:
            broker.config = await admin.broker_config(broker.address)
        except BrokerError as e:
            _note(broker, CONFIGURATION, e)
        with suppress(BrokerError):
            broker.ha_status = await admin.ha_status(broker.address)
        broker.sync_state_set = await sync_state_set(admin, broker.name, broker.config)
        if topic is not None:
            with suppress(BrokerError):
                broker.topic = await admin.topic_config(broker.address, topic)
    except GantryError as e:
        broker.error = e


def clock_ahead_s(runtime: dict[str, str], now_s: float) -> float | None:
    """Returns how far a broker's clock is ahead, to the second, derived from its start time and uptime."""
    match = _RUNTIME.fullmatch(runtime.get("runtime", "").strip())
    if match is None:
        return None
    try:
        days, hours, minutes, seconds = map(int, match.groups())
        booted_s = int(runtime.get("bootTimestamp", "")) / 1000
        return booted_s + ((days * 24 + hours) * 60 + minutes) * 60 + seconds - now_s
    except (ValueError, OverflowError):
        return None


def named(names: Iterable[str], limit: int = 5) -> str:
    """Joins the first `limit` names, and adds the number of the others."""
    first = sorted(names)
    return ", ".join(first[:limit]) + (f" and {len(first) - limit} more" if len(first) > limit else "")
