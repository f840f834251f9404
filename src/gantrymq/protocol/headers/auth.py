"""Headers of requests about users and their permissions (codes 3001 to 3010)."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header


class UserRequestHeader(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str | None = None


class ListUsersRequestHeader(Header):
    """AUTH_LIST_USER: users whose names contain `filter`."""

    filter: str | None = None


class AclRequestHeader(Header):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL."""

    subject: str | None = None


class DeleteAclRequestHeader(AclRequestHeader):
    """AUTH_DELETE_ACL. Without `resource`, deletes all entries of the subject."""

    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(Header):
    """AUTH_LIST_ACL: entries whose subjects and resources contain these texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None
