"""Users of RocketMQ 5.x and their policies. Passwords are neither queried nor shown."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.protocol.bodies.auth import AclInfo


class Right(msgspec.Struct):
    """A policy entry. `policy` is Custom, or Default, which applies if no Custom entry matches."""

    policy: str
    resource: str
    actions: list[str]
    source_ips: list[str]
    decision: str


class User(msgspec.Struct):
    """One user. A Super user has all rights. `lacking` has the brokers without this user."""

    name: str
    type: str
    status: str
    rights: list[Right]
    lacking: list[str]


class UsersPage(msgspec.Struct):
    table: Cut[User]
    clusters: list[str]
    unasked: list[Unasked]


async def users(view: ClusterView, arguments: ListArguments) -> UsersPage:
    """Returns the users of all brokers. The rights of a user are those on the first broker that has the user."""
    servers = await servers_of(view)
    names = {address: name for name, address in servers.masters.items()}
    answers = await view.each(names, view.admin.users)
    rights = await view.each(answers.results, view.admin.acls)
    known: dict[str, User] = {}
    for address, of_broker in answers.results.items():
        acls = {acl.subject: acl for acl in rights.results.get(address, ())}
        for one in of_broker:
            if one.username and one.username not in known:
                user = User(one.username, one.user_type or "", one.user_status or "", [], [])
                known[one.username] = user
                acl = acls.get(f"User:{one.username}")
                user.rights = _rights(acl) if acl is not None else []
    for address, of_broker in answers.results.items():
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
