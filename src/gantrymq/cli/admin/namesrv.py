"""mqadmin's commands for NameServers. Source: tools/command/namesrv/*."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.admin.command import command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, settings
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient

app = new_app()

Namespace = Annotated[str, typer.Option("-s", "--namespace", help="Namespace.")]
Key = Annotated[str, typer.Option("-k", "--key", help="Key.")]
Value = Annotated[str, typer.Option("-v", "--value", help="Value.")]
BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")]


@command(app, "updateKvConfig")
async def update_kv_config(admin: AdminClient, namespace: Namespace, key: Key, value: Value) -> Output:
    """Create or update KV config."""
    await admin.kv_put(namespace, key, value)
    return Output(
        {"namespace": namespace, "key": key, "value": value}, ["create or update kv config to namespace success."]
    )


@command(app, "deleteKvConfig")
async def delete_kv_config(admin: AdminClient, namespace: Namespace, key: Key, confirmation: Confirmation) -> Output:
    """Delete KV config."""
    if plan := await confirmation.check(f"delete key {key!r} of namespace {namespace!r}", admin.name_servers):
        return plan
    await admin.kv_delete(namespace, key)
    return Output({"namespace": namespace, "key": key}, ["delete kv config from namespace success."])


@command(app, "wipeWritePerm")
async def wipe_write_perm(admin: AdminClient, broker_name: BrokerName) -> Output:
    """Wipe write perm of broker in all name servers of -n."""
    return _permission("wipe", broker_name, await admin.wipe_write_perm(broker_name))


@command(app, "addWritePerm")
async def add_write_perm(admin: AdminClient, broker_name: BrokerName) -> Output:
    """Add write perm of broker in all name servers of -n."""
    return _permission("add", broker_name, await admin.add_write_perm(broker_name))


@command(app, "getNamesrvConfig")
async def get_namesrv_config(admin: AdminClient) -> Output:
    """Get configs of name server."""
    configs = await admin.name_server_configs()
    parts = [part for address, config in configs.items() for part in (f"NameServer {address}", settings(config))]
    return Output(configs, parts)


@command(app, "updateNamesrvConfig")
async def update_namesrv_config(admin: AdminClient, key: Key, value: Value) -> Output:
    """Update configs of name server."""
    await admin.update_name_server_configs({key: value})
    return Output(
        {"nameServers": admin.name_servers, "key": key, "value": value},
        [f"update name server config success! {';'.join(admin.name_servers)} {key} : {value}"],
    )


def _permission(verb: str, broker_name: str, counts: dict[str, int]) -> Output:
    return Output(
        {
            "brokerName": broker_name,
            "nameServers": [{"nameServer": a, "topicCount": count} for a, count in counts.items()],
        },
        [f"{verb} write perm of broker[{broker_name}] in name server[{a}] OK, {count}" for a, count in counts.items()],
    )
