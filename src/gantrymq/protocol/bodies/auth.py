"""JSON bodies of requests about users and what they may do (remoting/protocol/body/UserInfo, AclInfo)."""

from __future__ import annotations

import msgspec


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A user; what is None stays as it is in a change. `user_type` Super, Normal; `user_status` enable, disable."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """What may be done, or not, with one resource: Topic:*, Group:prefix*, Cluster:name."""

    resource: str | None = None
    actions: list[str] = []
    source_ips: list[str] = []
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Entries of one kind: Custom, or Default, which counts where no Custom entry fits."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = []


class AclInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """All that a subject, User:name, may do."""

    subject: str | None = None
    policies: list[PolicyInfo] = []
