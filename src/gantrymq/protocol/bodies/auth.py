"""Bodies about users and their permissions (remoting/protocol/body/UserInfo, AclInfo)."""

from __future__ import annotations

import msgspec


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A user. `user_type` is Super or Normal, `user_status` enable or disable. In an update, None keeps the value."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Allows or denies actions on one resource, for example Topic:*, Group:prefix* or Cluster:name."""

    resource: str | None = None
    actions: list[str] = []
    source_ips: list[str] = []
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Permissions of one kind: Custom, or Default, which applies if no Custom entry matches."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = []


class AclInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """All permissions of a subject, User:name."""

    subject: str | None = None
    policies: list[PolicyInfo] = []
