"""Changes of users of RocketMQ 5.x and their policies."""

from __future__ import annotations

import msgspec

from gantrymq.auth.policy import Acl
from gantrymq.client.admin.auth import acl_of
from gantrymq.console.changes.change import Change, check_typed
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.protocol.bodies.auth import UserInfo


class SaveUser(msgspec.Struct):
    """Creates or changes a user. An empty password, type or status is not changed."""

    cluster: str
    username: str
    password: str = ""
    user_type: str = ""
    user_status: str = ""


class DeleteUser(msgspec.Struct):
    cluster: str
    username: str
    typed: str = ""


class SaveRight(msgspec.Struct):
    """Sets a user's policy entry for a resource. `actions` and `source_ips` are lists with commas."""

    cluster: str
    username: str
    resource: str
    actions: str
    decision: str = "Allow"
    source_ips: str = ""


class DeleteRight(msgspec.Struct):
    cluster: str
    username: str
    resource: str


async def save_user(view: ClusterView, one: SaveUser) -> str:
    brokers = await view.admin.all_brokers_of(one.cluster)
    user = UserInfo(one.username, one.password or None, one.user_type or None, one.user_status or None)
    made = changed = 0
    for address in brokers:
        if await view.admin.user(address, one.username) is None:
            await view.admin.create_user([address], user)
            made += 1
        else:
            await view.admin.update_user([address], user)
            changed += 1
    return f"user {one.username} is created on {made} brokers, changed on {changed}"


async def delete_user(view: ClusterView, one: DeleteUser) -> str:
    check_typed(one.username, one.typed)
    brokers = await view.admin.all_brokers_of(one.cluster)
    await view.admin.delete_user(brokers, one.username)
    return f"user {one.username} is deleted from {len(brokers)} brokers"


async def save_right(view: ClusterView, one: SaveRight) -> str:
    subject = f"User:{one.username}"
    acl = acl_of(subject, [one.resource.strip()], _listed(one.actions), _listed(one.source_ips), one.decision)
    try:
        Acl.from_info(acl.policies)
    except ValueError as e:
        raise BadArguments(str(e)) from None
    brokers = await view.admin.all_brokers_of(one.cluster)
    for address in brokers:
        if await view.admin.acl(address, subject) is None:
            await view.admin.create_acl([address], acl)
        else:
            await view.admin.update_acl([address], acl)
    return f"rights of user {one.username} on {one.resource.strip()} are changed on {len(brokers)} brokers"


async def delete_right(view: ClusterView, one: DeleteRight) -> str:
    brokers = await view.admin.all_brokers_of(one.cluster)
    await view.admin.delete_acl(brokers, f"User:{one.username}", one.resource.strip())
    return f"rights of user {one.username} on {one.resource.strip()} are deleted on {len(brokers)} brokers"


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


CHANGES = (
    Change(
        name="save-user",
        arguments=SaveUser,
        perform=save_user,
        back=lambda one: link("users"),
        secrets=frozenset({"password"}),
    ),
    Change(
        name="delete-user",
        arguments=DeleteUser,
        perform=delete_user,
        back=lambda one: link("users"),
    ),
    Change(
        name="save-right",
        arguments=SaveRight,
        perform=save_right,
        back=lambda one: link("rights", user=one.username, resource=one.resource.strip()),
    ),
    Change(
        name="delete-right",
        arguments=DeleteRight,
        perform=delete_right,
        back=lambda one: link("users", search=one.username),
    ),
)
