"""What a user may do, and why: the entry that decides, as each broker's users and policies have it.

It is reckoned here, by the rules that brokers decide by, from what they tell of the user; so it holds for Java's, too.
"""

from __future__ import annotations

from ipaddress import ip_address

import msgspec

from gantrymq.auth.policy import Acl, Action, Decision, PolicyEntry, Resource, ResourceType
from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.servers import servers_of
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo

#: What is asked of a resource, in the order of the page.
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


class RightsArguments(msgspec.Struct):
    """Whether `user` may do something with `resource` (Topic:NAME, Group:NAME, Cluster:NAME) from the address `ip`."""

    user: str = ""
    resource: str = ""
    ip: str = "127.0.0.1"


class Verdict(msgspec.Struct):
    """What one broker decides about an action. `why` is super, unknown, disabled, entry or none; `entry` is which."""

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


async def rights(eye: Eye, arguments: RightsArguments) -> RightsPage:
    """Raises BadArguments."""
    user, text, ip = arguments.user.strip(), arguments.resource.strip(), arguments.ip.strip()
    if not user or not text:
        return RightsPage(user, text, ip, [], [])
    try:
        resource = Resource.parse(text)
        ip_address(ip)
    except ValueError as e:
        raise BadArguments(str(e)) from None
    if resource.type is ResourceType.ANY:
        raise BadArguments("one topic, group or cluster, or all of a kind: Topic:NAME, Group:*")
    servers = await servers_of(eye)
    names = {address: name for name, address in servers.masters.items()}

    async def ask(address: str) -> tuple[UserInfo | None, AclInfo | None]:
        known = await eye.admin.user(address, user)
        # About somebody unknown brokers refuse to answer.
        return known, await eye.admin.acl(address, f"User:{user}") if known is not None else None

    answers = await eye.each(names, ask)
    verdicts: list[Verdict] = []
    unasked = list(answers.unasked)
    for address, (known, acl) in sorted(answers.answers.items(), key=lambda answer: names[answer[0]]):
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
    """Whether it may, why, and by which entry. Raises ValueError for entries that nobody can read."""
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
