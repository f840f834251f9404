"""Replicas: how far slaves are behind their masters; what controllers say of broker sets."""

from __future__ import annotations

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.queries.servers import Nothing, servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo


class Slave(msgspec.Struct):
    """As its master sees it; `behind_ms` is None where the master doesn't tell."""

    broker: str
    master: str
    address: str
    behind_bytes: int
    behind_ms: int | None
    in_sync: bool
    bytes_a_second: int


class BrokerSet(msgspec.Struct):
    """A set as its controller knows it; a `master` may be missing."""

    name: str
    controller: str
    master: str | None
    epoch: int | None
    in_sync: list[str]
    not_in_sync: list[str]


class ReplicasPage(msgspec.Struct):
    slaves: list[Slave]
    sets: list[BrokerSet]
    unasked: list[Unasked]


async def replicas(eye: Eye, arguments: Nothing) -> ReplicasPage:
    servers = await servers_of(eye)
    names = {address: name for name, address in servers.masters.items()}
    status = await eye.each(names, eye.admin.ha_status)
    slaves = [
        Slave(
            names[address],
            address,
            slave.addr,
            slave.diff,
            slave.behind_millis if slave.behind_millis >= 0 else None,
            slave.in_sync,
            slave.transferred_byte_in_second,
        )
        for address, one in sorted(status.answers.items())
        for slave in one.connections
    ]
    configs = await eye.each(names, eye.admin.broker_config)
    controllers: dict[str, list[str]] = {}
    for address, config in configs.answers.items():
        if config.get("enableControllerMode") == "true":
            controllers.setdefault(config.get("controllerAddr", ""), []).append(names[address])
    sets: list[BrokerSet] = []
    unasked = [*status.unasked, *configs.unasked]
    for listed, brokers in controllers.items():
        try:
            controller, found = await _asked(eye, [one.strip() for one in listed.split(";") if one.strip()], brokers)
        except GantryError as e:
            unasked.append(Unasked(listed, str(e)))
            continue
        sets += [_set(name, controller, info) for name, info in sorted(found.items())]
    return ReplicasPage(slaves, sets, list(dict.fromkeys(unasked)))


async def _asked(eye: Eye, controllers: list[str], brokers: list[str]) -> tuple[str, dict[str, ReplicasInfo]]:
    """What the first controller that answers says."""
    error = GantryError("no controller is named")
    for controller in controllers:
        try:
            return controller, await eye.admin.sync_state_sets(controller, brokers)
        except GantryError as e:
            error = e
    raise error


def _set(name: str, controller: str, info: ReplicasInfo) -> BrokerSet:
    return BrokerSet(
        name,
        controller,
        info.master_address,
        info.master_epoch,
        [one.broker_address for one in info.in_sync_replicas],
        [one.broker_address for one in info.not_in_sync_replicas],
    )
