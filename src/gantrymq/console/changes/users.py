"""Users of RocketMQ 5.x, and what they may do."""

from __future__ import annotations

import msgspec

from gantrymq.auth.policy import Acl
from gantrymq.client.admin.auth import acl_of
from gantrymq.console.changes.change import Change, check_typed
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.protocol.bodies.auth import UserInfo


class SaveUser(msgspec.Struct):
    """An empty password, type or status stays as it is."""

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
    """What a user may do with a resource, or mayn't; `actions` and `source_ips` have commas between them."""

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


async def save_user(eye: Eye, one: SaveUser) -> str:
    brokers = await eye.admin.all_brokers_of(one.cluster)
    user = UserInfo(one.username, one.password or None, one.user_type or None, one.user_status or None)
    made = changed = 0
    for address in brokers:
        if await eye.admin.user(address, one.username) is None:
            await eye.admin.create_user([address], user)
            made += 1
        else:
            await eye.admin.update_user([address], user)
            changed += 1
    return f"user {one.username} is made on {made} brokers, changed on {changed}"


async def delete_user(eye: Eye, one: DeleteUser) -> str:
    check_typed(one.username, one.typed)
    brokers = await eye.admin.all_brokers_of(one.cluster)
    await eye.admin.delete_user(brokers, one.username)
    return f"user {one.username} is deleted from {len(brokers)} brokers"


async def save_right(eye: Eye, one: SaveRight) -> str:
    subject = f"User:{one.username}"
    acl = acl_of(subject, [one.resource.strip()], _listed(one.actions), _listed(one.source_ips), one.decision)
    try:
        Acl.from_info(acl.policies)
    except ValueError as e:
        raise BadArguments(str(e)) from None
    brokers = await eye.admin.all_brokers_of(one.cluster)
    for address in brokers:
        if await eye.admin.acl(address, subject) is None:
            await eye.admin.create_acl([address], acl)
        else:
            await eye.admin.update_acl([address], acl)
    return f"what user {one.username} may do with {one.resource.strip()} is changed on {len(brokers)} brokers"


async def delete_right(eye: Eye, one: DeleteRight) -> str:
    brokers = await eye.admin.all_brokers_of(one.cluster)
    await eye.admin.delete_acl(brokers, f"User:{one.username}", one.resource.strip())
    return f"the entry of user {one.username} for {one.resource.strip()} is taken away on {len(brokers)} brokers"


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
