"""mqadmin's commands for users and their permissions. Source: tools/command/auth."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gantrymq.cli.admin.command import Broker, Cluster, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, Table
from gantrymq.cli.admin.values import one_target
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo

app = new_app()

Username = Annotated[str, typer.Option("-u", "--username", help="The user's name, which is its access key.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--passwordFile", metavar="FILE", help="A file whose first line is the password; - for standard input."
    ),
]
Subject = Annotated[str, typer.Option("-s", "--subject", help="User:NAME.")]
Resources = Annotated[str, typer.Option("-r", "--resources", help="Topic:NAME, Group:NAME*, Cluster:*, with commas.")]
Actions = Annotated[str, typer.Option("-a", "--actions", help="Pub, Sub, Create, Update, Delete, Get, List, All.")]
EveryBroker = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every broker of this cluster.")]
SourceIps = Annotated[str, typer.Option("-i", "--sourceIp", help="Addresses or networks, with commas; else any.")]
AclDecision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny.")]
Source = Annotated[str, typer.Option("-f", "--fromBroker", help="HOST:PORT.")]
Target = Annotated[str, typer.Option("-t", "--toBroker", help="HOST:PORT.")]


@command(app, "createUser")
async def create_user(
    admin: AdminClient,
    username: Username,
    password: Annotated[
        str | None,
        typer.Option(
            "-p", "--password", help="The password, which is the user's secret key. Others can see arguments."
        ),
    ] = None,
    password_file: PasswordFile = None,
    cluster: EveryBroker = None,
    broker: Broker = None,
    user_type: Annotated[str | None, typer.Option("-t", "--userType", help="Super or Normal.")] = None,
) -> Output:
    """Create user to cluster."""
    password = _password(password, password_file)
    if password is None:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    addresses = await _targets(admin, cluster, broker)
    await admin.create_user(addresses, UserInfo(username, password, user_type))
    return _done("create user", addresses)


@command(app, "updateUser")
async def update_user(
    admin: AdminClient,
    username: Username,
    cluster: EveryBroker = None,
    broker: Broker = None,
    password: Annotated[
        str | None, typer.Option("-p", "--password", help="The new password. Others can see arguments.")
    ] = None,
    password_file: PasswordFile = None,
    user_type: Annotated[str | None, typer.Option("-t", "--userType", help="Super or Normal.")] = None,
    user_status: Annotated[str | None, typer.Option("-s", "--userStatus", help="enable or disable.")] = None,
) -> Output:
    """Update user to cluster."""
    password = _password(password, password_file)
    if not (password or user_type or user_status):
        raise typer.BadParameter("one of them is needed", param_hint="'-p' / '--passwordFile' / '-t' / '-s'")
    addresses = await _targets(admin, cluster, broker)
    await admin.update_user(addresses, UserInfo(username, password, user_type, user_status))
    return _done("update user", addresses)


@command(app, "deleteUser")
async def delete_user(
    admin: AdminClient,
    username: Username,
    confirmation: Confirmation,
    cluster: EveryBroker = None,
    broker: Broker = None,
) -> Output:
    """Delete user from cluster."""
    addresses = await _targets(admin, cluster, broker)
    if plan := await confirmation.check(f"delete user {username!r}", addresses):
        return plan
    await admin.delete_user(addresses, username)
    return _done("delete user", addresses)


@command(app, "getUser")
async def get_user(admin: AdminClient, username: Username, cluster: Cluster = None, broker: Broker = None) -> Output:
    """Get user from cluster."""
    for address in await _masters(admin, cluster, broker):
        user = await admin.user(address, username)
        if user is not None:
            return _users([user])
    return Output([], [f"no broker that was asked has user {username}"])


@command(app, "listUser")
async def list_user(
    admin: AdminClient,
    cluster: Cluster = None,
    broker: Broker = None,
    name_filter: Annotated[str, typer.Option("-f", "--filter", help="Only names that contain this.")] = "",
) -> Output:
    """List user from cluster."""
    for address in await _masters(admin, cluster, broker):
        users = await admin.users(address, name_filter)
        if users:
            return _users(users)
    return Output([], ["no user"])


@command(app, "copyUser")
async def copy_user(
    admin: AdminClient,
    broker: Source,
    target: Target,
    confirmation: Confirmation,
    usernames: Annotated[str, typer.Option("-u", "--usernames", help="With commas; else all.")] = "",
) -> Output:
    """Copy user to cluster."""
    if usernames:
        found = [await admin.user(broker, username) for username in _split(usernames)]
        users = [user for user in found if user is not None]
    else:
        users = await admin.users(broker)
    names = [user.username or "" for user in users]
    existing = [name for name in names if await admin.user(target, name) is not None]
    if plan := await _check_copy(confirmation, "users", names, existing, broker, target):
        return plan
    for name, user in zip(names, users, strict=True):
        await (admin.update_user if name in existing else admin.create_user)([target], user)
    return Output(names, [f"copy user of {name} from {broker} to {target} success." for name in names])


def _acl_command(name: str, what: str, change: Callable[[AdminClient, list[str], AclInfo], Awaitable[None]]) -> None:
    async def change_acl(
        admin: AdminClient,
        subject: Subject,
        resources: Resources,
        actions: Actions,
        decision: AclDecision,
        cluster: EveryBroker = None,
        broker: Broker = None,
        source_ips: SourceIps = "",
    ) -> Output:
        addresses = await _targets(admin, cluster, broker)
        acl = acl_of(subject, _split(resources), _split(actions), _split(source_ips), decision)
        await change(admin, addresses, acl)
        return _done(what, addresses)

    change_acl.__doc__ = f"{what.capitalize()} to cluster."
    command(app, name)(change_acl)


_acl_command("createAcl", "create acl", AdminClient.create_acl)
_acl_command("updateAcl", "update acl", AdminClient.update_acl)


@command(app, "deleteAcl")
async def delete_acl(
    admin: AdminClient,
    subject: Subject,
    confirmation: Confirmation,
    cluster: EveryBroker = None,
    broker: Broker = None,
    resource: Annotated[str | None, typer.Option("-r", "--resources", help="One resource; else all.")] = None,
) -> Output:
    """Delete acl from cluster."""
    addresses = await _targets(admin, cluster, broker)
    what = "all permissions" if resource is None else f"the permission for {resource!r}"
    if plan := await confirmation.check(f"delete {what} of {subject!r}", addresses):
        return plan
    await admin.delete_acl(addresses, subject, resource)
    return _done("delete acl", addresses)


@command(app, "getAcl")
async def get_acl(admin: AdminClient, subject: Subject, cluster: Cluster = None, broker: Broker = None) -> Output:
    """Get acl from cluster."""
    found = [await admin.acl(address, subject) for address in await _masters(admin, cluster, broker)]
    return _acls([acl for acl in found if acl is not None])


@command(app, "listAcl")
async def list_acl(
    admin: AdminClient,
    cluster: Cluster = None,
    broker: Broker = None,
    subject: Annotated[str, typer.Option("-s", "--subject", help="Only subjects that contain this.")] = "",
    resource: Annotated[str, typer.Option("-r", "--resource", help="Only resources that contain this.")] = "",
) -> Output:
    """List acl from cluster."""
    acls: list[AclInfo] = []
    for address in await _masters(admin, cluster, broker):
        acls += await admin.acls(address, subject, resource)
    return _acls(acls)


@command(app, "copyAcl")
async def copy_acl(
    admin: AdminClient,
    broker: Source,
    target: Target,
    confirmation: Confirmation,
    subjects: Annotated[str, typer.Option("-s", "--subjects", help="With commas; else all.")] = "",
) -> Output:
    """Copy acl to cluster."""
    if subjects:
        found = [await admin.acl(broker, subject) for subject in _split(subjects)]
        acls = [acl for acl in found if acl is not None]
    else:
        acls = await admin.acls(broker)
    names = [acl.subject or "" for acl in acls]
    existing = [name for name in names if await admin.acl(target, name) is not None]
    if plan := await _check_copy(confirmation, "permissions", names, existing, broker, target):
        return plan
    for acl in acls:
        await admin.create_acl([target], acl)
    return Output(names, [f"copy acl of {name} from {broker} to {target} success." for name in names])


async def _check_copy(
    confirmation: Confirmation, kind: str, names: list[str], existing: list[str], source: str, target: str
) -> Output | None:
    """Works like `Confirmation.check`, but does not ask if the copy changes no existing object."""
    if not existing and not confirmation.dry_run:
        return None
    new = [name for name in names if name not in existing]
    created, updated = (", ".join(map(repr, group)) or "none" for group in (new, existing))
    return await confirmation.check(f"copy {kind} from {source}: create {created}, update {updated}", [target])


def _password(argument: str | None, file: Path | None) -> str | None:
    """Returns the password from the command line or a file; None without a password."""
    if file is None:
        return argument
    if argument is not None:
        raise typer.BadParameter("only one of the two is possible", param_hint="'-p' / '--passwordFile'")
    try:
        text = sys.stdin.readline() if file == Path("-") else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise typer.BadParameter(f"can't read {file}: {why}", param_hint="'--passwordFile'") from e
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        name = "standard input" if file == Path("-") else str(file)
        raise typer.BadParameter(f"the first line of {name} is empty", param_hint="'--passwordFile'")
    return password


async def _targets(admin: AdminClient, cluster: str | None, broker: str | None) -> list[str]:
    """Returns the brokers to change, including slaves, because each broker has its own table."""
    one_target(cluster, broker)
    return [broker] if broker is not None else await admin.all_brokers_of(cluster or "")


async def _masters(admin: AdminClient, cluster: str | None, broker: str | None) -> list[str]:
    one_target(cluster, broker)
    return [broker] if broker is not None else await admin.masters_of(cluster or "")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _done(what: str, addresses: list[str]) -> Output:
    return Output({"brokers": addresses}, [f"{what} to {address} success." for address in addresses])


def _users(users: list[UserInfo]) -> Output:
    rows = [[user.username, user.password, user.user_type, user.user_status] for user in users]
    return Output(users, [Table(["UserName", "Password", "UserType", "UserStatus"], rows)])


def _acls(acls: list[AclInfo]) -> Output:
    rows: list[list[Any]] = [
        [
            acl.subject,
            policy.policy_type,
            entry.resource,
            ",".join(entry.actions),
            ",".join(entry.source_ips),
            entry.decision,
        ]
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]
    headings = ["Subject", "PolicyType", "Resource", "Actions", "SourceIp", "Decision"]
    return Output(acls, [Table(headings, rows)] if rows else ["no acl"])
