"""mqadmin's commands for controllers and the broker sets in them. Source: tools/command/controller/*, ha/*."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gantrymq.cli.admin.brokers import Interval
from gantrymq.cli.admin.command import command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, Table, settings
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.controller import EpochEntry, ReplicasInfo

app = new_app()

Controller = Annotated[str, typer.Option("-a", "--controllerAddress", help="A controller, HOST:PORT.")]
Controllers = Annotated[str, typer.Option("-a", "--controllerAddress", help="Controllers, HOST:PORT;HOST:PORT.")]
ClusterName = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every broker of this cluster.")]
BrokerName = Annotated[str | None, typer.Option("-b", "--brokerName", help="Only the brokers of this name.")]
SetName = Annotated[str, typer.Option("-bn", "--brokerName", help="The name of the brokers.")]


@command(app, "getSyncStateSet")
async def get_sync_state_set(
    admin: AdminClient,
    controller: Controller,
    cluster: ClusterName = None,
    broker: BrokerName = None,
    interval: Interval = 0,
) -> Output:
    """Fetch syncStateSet for target brokers."""
    sets = await admin.sync_state_sets(controller.split(";")[0], await _names(admin, cluster, broker))
    rows = [
        [name, replica.broker_id, replica.broker_address, _role(info, replica.broker_id), yes, _yes(replica.alive)]
        for name, info in sorted(sets.items())
        for yes, replicas in (("yes", info.in_sync_replicas), ("no", info.not_in_sync_replicas))
        for replica in replicas
    ]
    epochs = [
        [name, info.master_epoch, info.sync_state_set_epoch, len(info.in_sync_replicas)]
        for name, info in sorted(sets.items())
    ]
    return Output(
        sets,
        [
            Table(["Broker", "Master epoch", "SyncStateSet epoch", "In sync"], epochs),
            Table(["Broker", "Id", "Address", "Role", "In sync", "Alive"], rows),
        ],
    )


@command(app, "getBrokerEpoch")
async def get_broker_epoch(
    admin: AdminClient, cluster: ClusterName = None, broker: BrokerName = None, interval: Interval = 0
) -> Output:
    """Fetch broker epoch entries."""
    names = await _names(admin, cluster, broker)
    table = (await admin.cluster_info()).broker_addr_table
    addresses = [address for name in names if name in table for address in table[name].broker_addrs.values()]
    document: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for address in addresses:
        cache = await admin.broker_epochs(address)
        # The current epoch has no end yet, so the largest offset is shown.
        *ended, last = cache.epoch_list or [EpochEntry(0, 0)]
        entries = [*ended, EpochEntry(last.epoch, last.start_offset, cache.max_offset)]
        document.append({"brokerAddr": address, "epochs": entries, "brokerName": cache.broker_name})
        rows += [[cache.broker_name, cache.broker_id, address, e.epoch, e.start_offset, e.end_offset] for e in entries]
    return Output(document, [Table(["Broker", "Id", "Address", "Epoch", "Start offset", "End offset"], rows)])


@command(app, "getControllerMetaData")
async def get_controller_meta_data(admin: AdminClient, controller: Controller) -> Output:
    """Get controller cluster's metadata."""
    found = await admin.controller_metadata(controller)
    peers = [peer for peer in (found.peers or "").split(";") if peer]
    rows = {
        "ControllerGroup": found.group or "",
        "ControllerLeaderId": found.controller_leader_id or "(nobody leads)",
        "ControllerLeaderAddress": found.controller_leader_address or "",
        "Peers": " ".join(peers),
    }
    document = {
        "group": found.group,
        "controllerLeaderId": found.controller_leader_id,
        "controllerLeaderAddress": found.controller_leader_address,
        "isLeader": found.is_leader,
        "peers": peers,
    }
    return Output(document, [Table(["Key", "Value"], list(rows.items()))])


@command(app, "getControllerConfig")
async def get_controller_config(admin: AdminClient, controllers: Controllers) -> Output:
    """Get controller config."""
    configs = await admin.controller_configs(_addresses(controllers))
    parts = [part for address, config in configs.items() for part in (f"Controller {address}", settings(config))]
    return Output(configs, parts)


@command(app, "updateControllerConfig")
async def update_controller_config(
    admin: AdminClient,
    controllers: Controllers,
    key: Annotated[str, typer.Option("-k", "--key", help="Key.")],
    value: Annotated[str, typer.Option("-v", "--value", help="Value.")],
) -> Output:
    """Update controller config."""
    addresses = _addresses(controllers)
    await admin.update_controller_configs(addresses, {key: value})
    return Output(
        {"controllers": addresses, "key": key, "value": value},
        [f"update controller config success! {';'.join(addresses)} {key} : {value}"],
    )


@command(app, "electMaster")
async def elect_master(
    admin: AdminClient,
    controller: Controller,
    broker_id: Annotated[int, typer.Option("-b", "--brokerId", help="The id of the broker that is to be master.")],
    broker_name: SetName,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Its cluster.")],
) -> Output:
    """Re-elect the specified broker as master."""
    elected, members = await admin.elect_master(controller, cluster, broker_name, broker_id)
    document = {
        "clusterName": cluster,
        "brokerName": broker_name,
        "masterBrokerId": elected.master_broker_id,
        "masterAddress": elected.master_address,
        "masterEpoch": elected.master_epoch,
        "syncStateSetEpoch": elected.sync_state_set_epoch,
        "brokers": members,
    }
    said = (
        f"broker {elected.master_broker_id} of {broker_name} at {elected.master_address} is master now, "
        f"epoch {elected.master_epoch}"
    )
    return Output(document, [said, Table(["Id", "Address"], sorted(members.items()))])


@command(app, "cleanBrokerMetadata")
async def clean_broker_metadata(
    admin: AdminClient,
    controller: Controller,
    broker_name: SetName,
    confirmation: Confirmation,
    broker_ids: Annotated[
        str, typer.Option("-b", "--brokerControllerIdsToClean", help="Their ids, 1;2;3; without, all of the name.")
    ] = "",
    cluster: Annotated[str | None, typer.Option("-c", "--clusterName", help="Their cluster.")] = None,
    living: Annotated[bool, typer.Option("-l", "--cleanLivingBroker", help="Also live brokers.")] = False,
) -> Output:
    """Clean metadata of broker on controller."""
    if not living and not cluster:
        raise ClientError("-c CLUSTER is needed, unless -l says that living brokers are meant, too")
    try:
        ids = [int(part) for part in broker_ids.split(";") if part.strip()]
    except ValueError as e:
        raise ClientError(f"-b {broker_ids}: ids are numbers with semicolons between them, 1;2;3") from e
    which = f"brokers {', '.join(map(str, ids))}" if ids else "all brokers"
    if plan := await confirmation.check(f"delete the metadata of {which} of {broker_name!r}", [controller]):
        return plan
    await admin.clean_broker_metadata(controller, broker_name, cluster=cluster, broker_ids=ids, living_too=living)
    return Output(
        {"brokerName": broker_name, "brokerIds": ids},
        [f"clear broker {broker_name} metadata from controller success!"],
    )


async def _names(admin: AdminClient, cluster: str | None, broker: str | None) -> list[str]:
    if broker is not None:
        return [broker]
    if cluster is None:
        raise ClientError("either -b BROKER or -c CLUSTER is needed")
    return [found.broker_name for found in await admin.brokers_of(cluster)]


def _addresses(controllers: str) -> list[str]:
    return [address.strip() for address in controllers.split(";") if address.strip()]


def _role(info: ReplicasInfo, broker_id: int) -> str:
    return "master" if broker_id == info.master_broker_id else "slave"


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"
