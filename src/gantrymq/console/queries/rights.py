"""The rights of a user on each broker, and the policy entries that decide.

The console computes the rights from the users and policies that the brokers report, by the rules of RocketMQ's brokers.
"""

from __future__ import annotations

from ipaddress import ip_address

import msgspec

from gantrymq.auth.policy import Acl, Action, Decision, PolicyEntry, Resource, ResourceType
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.servers import servers_of
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo

#: Actions in the order of the page.
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


class RightsArguments(msgspec.Struct):
    """Arguments of the page. `resource` is Topic:NAME, Group:NAME or Cluster:NAME. `ip` is the client's address."""

    user: str = ""
    resource: str = ""
    ip: str = "127.0.0.1"


class Verdict(msgspec.Struct):
    """The decision of one broker about an action. The reason `why` is super, unknown, disabled, entry or none."""

    broker: str
    action: str
    may: bool
    why: str
    entry: str


class RightsPage(msgspec.Struct):
    user: str
    resource: str
    ip: str
    verdicts: list[Verdict]
    unasked: list[Unasked]


async def rights(view: ClusterView, arguments: RightsArguments) -> RightsPage:
    """Returns the page. Raises BadArguments for an invalid resource or address."""
    user, text, ip = arguments.user.strip(), arguments.resource.strip(), arguments.ip.strip()
    if not user or not text:
        return RightsPage(user, text, ip, [], [])
    try:
        resource = Resource.parse(text)
        ip_address(ip)
    except ValueError as e:
        raise BadArguments(str(e)) from None
    if resource.type is ResourceType.ANY:
        raise BadArguments("expected a resource such as Topic:NAME, Group:NAME* or Cluster:*")
    servers = await servers_of(view)
    names = {address: name for name, address in servers.masters.items()}

    async def query(address: str) -> tuple[UserInfo | None, AclInfo | None]:
        known = await view.admin.user(address, user)
        # Brokers reject this request for an unknown user.
        return known, await view.admin.acl(address, f"User:{user}") if known is not None else None

    answers = await view.each(names, query)
    verdicts: list[Verdict] = []
    unasked = list(answers.unasked)
    for address, (known, acl) in sorted(answers.results.items(), key=lambda answer: names[answer[0]]):
        for action in ACTIONS:
            try:
                may, why, entry = verdict(known, acl, resource, action, ip)
            except ValueError as e:
                unasked.append(Unasked(names[address], str(e)))
                break
            verdicts.append(Verdict(names[address], action, may, why, entry))
    return RightsPage(user, text, ip, verdicts, unasked)


def verdict(
    user: UserInfo | None, acl: AclInfo | None, resource: Resource, action_name: str, ip: str
) -> tuple[bool, str, str]:
    """Returns whether the action is allowed, the reason, and the entry. Raises ValueError for an invalid entry."""
    action = Action.parse(action_name)
    assert action is not None
    if user is None:
        return False, "unknown", ""
    if (user.user_status or "").lower() == "disable":
        return False, "disabled", ""
    if (user.user_type or "").lower() == "super":
        return True, "super", ""
    entry = Acl.from_info(acl.policies).decisive(resource, [action], ip) if acl is not None and acl.policies else None
    if entry is None:
        return False, "none", ""
    return entry.decision is Decision.ALLOW, "entry", entry_text(entry)


def entry_text(entry: PolicyEntry) -> str:
    actions = ", ".join(action.value for action in entry.actions)
    source = f" from {', '.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{entry.decision.value} {entry.resource}: {actions}{source}"
