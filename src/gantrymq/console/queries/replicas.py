"""Pages about replication: the lag of slaves, and the sync-state sets of controllers."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.queries.servers import Nothing, servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo


class Slave(msgspec.Struct):
    """The state of a slave from its master. `behind_ms` is None if the master does not report it."""

    broker: str
    master: str
    address: str
    behind_bytes: int
    behind_ms: int | None
    in_sync: bool
    bytes_a_second: int


class BrokerSet(msgspec.Struct):
    """The state of a broker set from its controller. `master` is None if there is no master."""

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


class ControllersPage(msgspec.Struct):
    sets: list[BrokerSet]
    unasked: list[Unasked]


async def replicas(view: ClusterView, arguments: Nothing) -> ReplicasPage:
    servers = await servers_of(view)
    names = {address: name for name, address in servers.masters.items()}
    status = await view.each(names, view.admin.ha_status)
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
        for address, one in sorted(status.results.items(), key=lambda found: names[found[0]])
        for slave in one.connections
    ]
    of_controllers = await controllers(view, arguments)
    return ReplicasPage(slaves, of_controllers.sets, list(dict.fromkeys([*status.unasked, *of_controllers.unasked])))


async def controllers(view: ClusterView, arguments: Nothing) -> ControllersPage:
    servers = await servers_of(view)
    names = {address: name for name, address in servers.masters.items()}
    configs = await view.each(names, view.admin.broker_config)
    by_controllers: dict[str, list[str]] = {}
    for address, config in configs.results.items():
        if config.get("enableControllerMode") == "true":
            by_controllers.setdefault(config.get("controllerAddr", ""), []).append(names[address])
    sets: list[BrokerSet] = []
    unasked = list(configs.unasked)
    for listed, brokers in by_controllers.items():
        try:
            controller, found = await _query_first(
                view, [one.strip() for one in listed.split(";") if one.strip()], brokers
            )
        except GantryError as e:
            unasked.append(Unasked(listed, str(e)))
            continue
        sets += [_set(name, controller, info) for name, info in sorted(found.items())]
    return ControllersPage(sets, list(dict.fromkeys(unasked)))


async def _query_first(
    view: ClusterView, controllers: list[str], brokers: list[str]
) -> tuple[str, dict[str, ReplicasInfo]]:
    """Returns the response of the first controller that responds."""
    error = GantryError("controllerAddr is empty")
    for controller in controllers:
        try:
            return controller, await view.admin.sync_state_sets(controller, brokers)
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
