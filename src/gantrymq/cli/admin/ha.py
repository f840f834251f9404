"""mqadmin's commands for replication. Source: tools/command/ha, command/broker/ResetMasterFlushOffsetSubCommand."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.admin.command import Broker, Cluster, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Column, Output, Table, human_time, table
from gantrymq.cli.admin.values import one_target
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.ha_status import HaConnectionStatus, HaStatus

app = new_app()

Interval = Annotated[
    int, typer.Option("-i", "--interval", min=0, help="Repeat at this interval, in seconds, until Ctrl-C.")
]


@command(app, "haStatus")
async def ha_status(
    admin: AdminClient, cluster: Cluster = None, broker: Broker = None, interval: Interval = 0
) -> Output:
    """Fetch ha runtime status data."""
    one_target(cluster, broker)
    addresses = [broker] if broker else await admin.masters_of(cluster or "")
    statuses = {address: await admin.ha_status(address) for address in addresses}
    return Output(statuses, [part for address, status in statuses.items() for part in _tables_of(address, status)])


@command(app, "resetMasterFlushOffset")
async def reset_master_flush_offset(
    admin: AdminClient,
    broker: Annotated[str, typer.Option("-b", "--brokerAddr", help="Which broker to reset, HOST:PORT.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The offset to reset at.")],
    confirmation: Confirmation,
) -> Output:
    """Reset master flush offset in slave."""
    if plan := await confirmation.check(f"reset the master's flush offset to {offset}", [broker]):
        return plan
    await admin.reset_master_flush_offset(broker, offset)
    return Output({"broker": broker, "offset": offset}, [f"reset master flush offset to {offset} success"])


def _tables_of(address: str, status: HaStatus) -> list[Table | str]:
    if status.master:
        rows = [_slave(connection) for connection in status.connections]
        columns: dict[str, Column] = {
            "addr": "SlaveAddr",
            "ack": "SlaveAckOffset",
            "diff": "Diff",
            "speed": ("TransferSpeed(KB/s)", lambda bytes_a_s: f"{bytes_a_s / 1024:.2f}"),
            "status": "Status",
            "from": "TransferFromWhere",
        }
        return [
            f"MasterAddr {address}",
            f"MasterCommitLogMaxOffset {status.master_commit_log_max_offset}",
            f"SlaveNum {len(rows)}",
            f"InSyncSlaveNum {status.in_sync_slave_nums}",
            table(rows, columns),
        ]
    client = status.client
    return [
        f"MasterAddr {client.master_addr}",
        f"CommitLogMaxOffset {client.max_offset}",
        f"TransferSpeed(KB/s) {client.transferred_byte_in_second / 1024:.2f}",
        f"LastReadTime {human_time(client.last_read_timestamp)}",
        f"LastWriteTime {human_time(client.last_write_timestamp)}",
        f"MasterFlushOffset {client.master_flush_offset}",
    ]


def _slave(connection: HaConnectionStatus) -> dict[str, object]:
    return {
        "addr": connection.addr,
        "ack": connection.slave_ack_offset,
        "diff": connection.diff,
        "speed": connection.transferred_byte_in_second,
        "status": "OK" if connection.in_sync else "Fall Behind",
        "from": connection.transfer_from_where,
    }
