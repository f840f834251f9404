"""Policies of users: entries that allow or deny actions on resources, and the rule that selects the deciding entry.

Source: auth/authorization/model/*, chain/AclAuthorizationHandler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple, Self

from gantrymq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo


class _Named(Enum):
    """An enum of Java's names. Parsing ignores case."""

    #: This is three times as fast as Enum's hash, which is computed from the name at each call.
    __hash__ = object.__hash__

    @classmethod
    def parse(cls, name: str | None) -> Self | None:
        wanted = (name or "").lower()
        return next((member for member in cls if member.value.lower() == wanted), None)


class ResourceType(_Named):
    """The type of a resource. ANY is used if a request names no resource."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(_Named):
    """The action of a request on a resource. ANY means any action."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(_Named):
    """The decision of a policy entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(_Named):
    """The type of a policy. Default entries apply only if no Custom entry does."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Pattern(Enum):
    """The kinds of comparison with a resource's name, the most exact one first."""

    __hash__ = object.__hash__

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class Resource(NamedTuple):
    """A topic, group or cluster, all with a prefix, or all. Text format: Topic:a, Topic:a*, Topic:*, *."""

    type: ResourceType
    name: str
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Parses the text format. Raises ValueError if it is invalid."""
        if text == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        type_name, colon, name = text.partition(":")
        type_ = ResourceType.parse(type_name)
        if type_ is None or not colon or not name:
            raise ValueError(
                f"resource {text!r}: expected Topic:NAME, Group:NAME or Cluster:NAME, with NAME, NAME* or *, or *"
            )
        if name == "*":
            return cls(type_, "", Pattern.ANY)
        prefix, star, _ = name.partition("*")
        if star and name.endswith("*"):
            return cls(type_, prefix, Pattern.PREFIXED)
        return cls(type_, name)

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        return f"{self.type.value}:{self.name}{'' if self.pattern is Pattern.LITERAL else '*'}"

    def matches(self, other: Resource) -> bool:
        """Returns True if this resource includes `other`, a single topic, group or cluster."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not other.type:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == other.name
        return other.name.startswith(self.name)


@dataclass(slots=True, frozen=True)
class PolicyEntry:
    """An entry that allows or denies `actions` on `resource` for `networks`, or for all clients without networks."""

    resource: Resource
    actions: tuple[Action, ...]
    source_ips: tuple[str, ...]
    decision: Decision
    networks: tuple[IPv4Network | IPv6Network, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "networks", tuple(ip_network(ip, strict=False) for ip in self.source_ips))

    @classmethod
    def from_info(cls, info: PolicyEntryInfo) -> PolicyEntry:
        """Converts a received entry. Raises ValueError if Java would reject it, or for actions that Java ignores."""
        if not info.resource:
            raise ValueError("The resource is null.")
        actions = [Action.parse(name) for name in info.actions]
        if not actions:
            raise ValueError("The actions is empty.")
        if None in actions:
            raise ValueError(
                f"actions {', '.join(info.actions)}: expected some of {', '.join(a.value for a in Action)}"
            )
        if Action.ANY in actions:
            raise ValueError("The actions can not be Any.")
        decision = Decision.parse(info.decision)
        if decision is None:
            raise ValueError("The decision is null or illegal.")
        try:
            return cls(
                Resource.parse(info.resource),
                tuple(action for action in actions if action is not None),
                tuple(info.source_ips),
                decision,
            )
        except ValueError as e:
            raise ValueError(f"{info.resource}: {e}") from e

    def info(self) -> PolicyEntryInfo:
        return PolicyEntryInfo(
            str(self.resource),
            [action.value for action in self.actions],
            list(self.source_ips),
            self.decision.value,
        )

    def matches(self, resource: Resource, actions: Sequence[Action], host: str) -> bool:
        """Returns True if this entry applies to one of `actions` on `resource` by a client at `host`."""
        return self.resource.matches(resource) and self.is_about(actions, host)

    def is_about(self, actions: Sequence[Action], host: str) -> bool:
        """Returns True if the entry allows or denies one of `actions` (`Action.ANY`: any) by a client at `host`."""
        is_every = Action.ALL in self.actions or Action.ANY in actions
        if not is_every and not any(action in self.actions for action in actions):
            return False
        if not self.networks:
            return True
        address = ip_address(host)
        return any(address in network for network in self.networks)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key: the entry with the lowest rank, which has the most exact resource, decides."""
        resource = self.resource
        length = len(resource.name) if resource.pattern is Pattern.PREFIXED else 0
        return resource.type is ResourceType.ANY, resource.pattern.value, -length


@dataclass(slots=True)
class Acl:
    """All policy entries of a subject: one for each resource and type of policy."""

    policies: dict[PolicyType, dict[Resource, PolicyEntry]] = field(default_factory=dict)

    @classmethod
    def from_info(cls, policies: Iterable[PolicyInfo]) -> Acl:
        """Converts received policies. Raises ValueError for an invalid entry, or if there are no entries."""
        acl = cls()
        for policy in policies:
            policy_type = PolicyType.CUSTOM if policy.policy_type is None else PolicyType.parse(policy.policy_type)
            if policy_type is None:
                raise ValueError(f"policyType {policy.policy_type!r}: expected Custom or Default")
            if not policy.entries:
                raise ValueError("The policy entries is empty.")
            entries = acl.policies.setdefault(policy_type, {})
            for info in policy.entries:
                entry = PolicyEntry.from_info(info)
                entries[entry.resource] = entry
        if not acl.policies:
            raise ValueError("The policies is empty.")
        return acl

    def info(self, subject: str, resource_filter: str = "") -> AclInfo:
        """Converts the entries for sending and storing. Includes those whose resource contains `resource_filter`."""
        policies = []
        for policy_type, entries in self.policies.items():
            infos = [entry.info() for entry in entries.values() if resource_filter in str(entry.resource)]
            if infos:
                policies.append(PolicyInfo(policy_type.value, infos))
        return AclInfo(subject, policies)

    def update(self, other: Acl) -> None:
        """Adds or replaces the entries of `other`."""
        for policy_type, entries in other.policies.items():
            self.policies.setdefault(policy_type, {}).update(entries)

    def remove(self, policy_type: PolicyType, resource: Resource) -> None:
        """Removes an entry, and its policy if it was the last entry."""
        entries = self.policies.get(policy_type, {})
        entries.pop(resource, None)
        if not entries:
            self.policies.pop(policy_type, None)

    def decisive(self, resource: Resource, actions: Sequence[Action], host: str) -> PolicyEntry | None:
        """Returns the entry that decides about a request: a Custom entry, otherwise a Default entry, otherwise None.

        If the request needs all resources of a type (`Pattern.ANY`), an entry for all of them decides, unless an entry
        denies one of them. If it needs any resource (`ResourceType.ANY`), an entry that allows something decides.
        """
        if resource.pattern is not Pattern.ANY:
            return self._decisive(resource, actions, host)
        entries = [entry for each in self.policies.values() for entry in each.values() if entry.is_about(actions, host)]
        if resource.type is ResourceType.ANY:
            return next((entry for entry in entries if entry.decision is Decision.ALLOW), None)
        for entry in entries:
            if entry.decision is Decision.DENY and entry.resource.type is resource.type:
                return entry
        return self._decisive(resource, actions, host)

    def _decisive(self, resource: Resource, actions: Sequence[Action], host: str) -> PolicyEntry | None:
        for policy_type in (PolicyType.CUSTOM, PolicyType.DEFAULT):
            entries = self.policies.get(policy_type, {}).values()
            matching = [entry for entry in entries if entry.matches(resource, actions, host)]
            if matching:
                return min(matching, key=lambda entry: entry.rank)
        return None
