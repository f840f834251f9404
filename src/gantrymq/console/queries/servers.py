"""Pages about servers: all brokers, and one broker."""

from __future__ import annotations

import re

import msgspec

from gantrymq.background.failures import failed_jobs
from gantrymq.console.cluster_view import ClusterView, Servers
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.broker_keys import READ_AT_START

#: Configuration keys whose values are never shown.
_SECRET = re.compile(r"password|secret|credential|initAuthenticationUser|accessKey|token", re.IGNORECASE)
HIDDEN = "********"
#: A configuration key that only brokers of GantryMQ have.
OUR_KEY = "idempotentWriterMaxNum"


class Broker(msgspec.Struct):
    """A broker. Rates are messages/s over the last 10 s, times are in ms. Values that it does not report are None."""

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    disk_used_ratio: float | None = None
    log_bytes: int | None = None
    oldest_message_ms: int | None = None
    booted_ms: int | None = None
    #: Names of its background jobs that failed since its start.
    failing_jobs: list[str] = []

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


class Nothing(msgspec.Struct):
    """No arguments."""


class Brokers(msgspec.Struct):
    table: Cut[Broker]
    unasked: list[Unasked]


class BrokerArguments(msgspec.Struct):
    address: str


class BrokerPage(msgspec.Struct):
    """One broker. `is_gantry` is false for a broker of Apache RocketMQ, which reports less data."""

    broker: Broker
    is_gantry: bool
    config: dict[str, str]
    #: Keys that the broker reads only at the start; other keys take effect at once. None for a broker of Apache
    #: RocketMQ.
    read_at_start: list[str] | None
    runtime: dict[str, str]
    unasked: list[Unasked]


async def brokers(view: ClusterView, arguments: ListArguments) -> Brokers:
    servers = await servers_of(view)
    columns = {
        "name": lambda b: (b.cluster, b.name, b.broker_id),
        "address": lambda b: b.address,
        "in_tps": lambda b: b.in_tps or 0.0,
        "out_tps": lambda b: b.out_tps or 0.0,
        "disk": lambda b: b.disk_used_ratio or 0.0,
    }
    found = cut(
        all_brokers(servers),
        arguments,
        columns,
        text=lambda b: f"{b.cluster} {b.name} {b.broker_id} {b.address}",
        default="name",
    )
    return Brokers(found, servers.unasked)


async def broker(view: ClusterView, arguments: BrokerArguments) -> BrokerPage:
    """Returns the page of a broker. Raises ClientError for an address that no NameServer lists.

    Otherwise users could make the console send requests to any server.
    """
    servers = await check_address(view, arguments.address)
    (found,) = [broker for broker in all_brokers(servers) if broker.address == arguments.address]
    unasked = [unasked for unasked in servers.unasked if unasked.what == arguments.address]
    config: dict[str, str] = {}
    try:
        config = await view.admin.broker_config(arguments.address)
    except BrokerError as e:
        unasked.append(Unasked(arguments.address, str(e)))
    is_gantry = OUR_KEY in config
    return BrokerPage(
        found,
        is_gantry,
        {key: HIDDEN if value and is_secret(key) else value for key, value in sorted(config.items())},
        sorted(config.keys() & READ_AT_START) if is_gantry else None,
        servers.runtime.get(arguments.address, {}),
        unasked,
    )


async def check_address(view: ClusterView, address: str) -> Servers:
    """Returns the servers. Raises ClientError for an address that no NameServer lists."""
    servers = await servers_of(view)
    if all(address not in broker.broker_addrs.values() for broker in servers.info.broker_addr_table.values()):
        raise ClientError(f"no broker at {address!r} is registered")
    return servers


def is_secret(key: str) -> bool:
    """Returns True if the value of a configuration key is never shown."""
    return _SECRET.search(key) is not None


async def servers_of(view: ClusterView) -> Servers:
    """Returns the servers. Raises ClientError if no NameServer has responded yet, or the error of the NameServers."""
    servers = await view.servers.get(view.settings.timeout_ms / 1000 + 0.5)
    if servers is None:
        raise ClientError("the NameServers have not answered yet")
    return servers


def all_brokers(servers: Servers) -> list[Broker]:
    """Returns all brokers, ordered by cluster, name and id."""
    found = [
        _broker(data.cluster, name, broker_id, address, servers.runtime.get(address))
        for name, data in servers.info.broker_addr_table.items()
        for broker_id, address in data.broker_addrs.items()
    ]
    return sorted(found, key=lambda broker: (broker.cluster, broker.name, broker.broker_id))


def _broker(cluster: str, name: str, broker_id: int, address: str, runtime: dict[str, str] | None) -> Broker:
    if runtime is None:
        return Broker(cluster, name, broker_id, address)
    begin, end = _number(runtime.get("commitLogMinOffset")), _number(runtime.get("commitLogMaxOffset"))
    oldest, booted = _number(runtime.get("earliestMessageTimeStamp")), _number(runtime.get("bootTimestamp"))
    return Broker(
        cluster,
        name,
        broker_id,
        address,
        runtime.get("brokerVersionDesc"),
        _number((runtime.get("putTps") or "").partition(" ")[0]),
        _number((runtime.get("getTransferredTps") or "").partition(" ")[0]),
        _number(runtime.get("commitLogDiskRatio")),
        int(end - begin) if begin is not None and end is not None else None,
        int(oldest) if oldest is not None and oldest > 0 else None,
        int(booted) if booted else None,
        [job.name for job in failed_jobs(runtime)],
    )


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if abs(number) < 2**63 else None
