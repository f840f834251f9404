"""Users of RocketMQ 5.x and what they may do. Passwords are asked for by nobody, and shown to nobody."""

from __future__ import annotations

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.protocol.bodies.auth import AclInfo


class Right(msgspec.Struct):
    """What is allowed or denied; `policy` is Custom, or Default, which counts where no Custom entry fits."""

    policy: str
    resource: str
    actions: list[str]
    source_ips: list[str]
    decision: str


class User(msgspec.Struct):
    """One user; a Super one may do everything. `lacking` are brokers that don't know it."""

    name: str
    type: str
    status: str
    rights: list[Right]
    lacking: list[str]


class UsersPage(msgspec.Struct):
    table: Cut[User]
    clusters: list[str]
    unasked: list[Unasked]


async def users(eye: Eye, arguments: ListArguments) -> UsersPage:
    """Each broker has users of its own: rights are those of the first that knows the user."""
    servers = await servers_of(eye)
    names = {address: name for name, address in servers.masters.items()}
    answers = await eye.each(names, eye.admin.users)
    rights = await eye.each(answers.answers, eye.admin.acls)
    known: dict[str, User] = {}
    for address, of_broker in answers.answers.items():
        acls = {acl.subject: acl for acl in rights.answers.get(address, ())}
        for one in of_broker:
            if one.username and one.username not in known:
                user = User(one.username, one.user_type or "", one.user_status or "", [], [])
                known[one.username] = user
                acl = acls.get(f"User:{one.username}")
                user.rights = _rights(acl) if acl is not None else []
    for address, of_broker in answers.answers.items():
        there = {one.username for one in of_broker}
        for user in known.values():
            if user.name not in there:
                user.lacking.append(names[address])
    columns = {"name": lambda u: u.name, "type": lambda u: u.type, "status": lambda u: u.status}
    table = cut(known.values(), arguments, columns, text=lambda u: u.name, default="name")
    return UsersPage(table, sorted(servers.info.cluster_addr_table), [*answers.unasked, *rights.unasked])


def _rights(acl: AclInfo) -> list[Right]:
    return [
        Right(policy.policy_type or "", entry.resource or "", entry.actions, entry.source_ips, entry.decision or "")
        for policy in acl.policies
        for entry in policy.entries
    ]
