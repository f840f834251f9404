"""Users and their permissions (`DefaultMQAdminExt.createUser` to `listAcl`)."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.client.admin.base import AdminBase
from gantrymq.errors import BrokerUnavailable
from gantrymq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.auth import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)


class AdminAuth(AdminBase):
    """Requests for users and permissions of each broker in `addresses`. A subject has the form User:NAME."""

    async def all_brokers_of(self, cluster: str) -> list[str]:
        """Returns HOST:PORT of the cluster's masters and slaves. Raises BrokerUnavailable if there are none."""
        brokers = await self.brokers_of(cluster)
        addresses = [address for broker in brokers for _, address in sorted(broker.broker_addrs.items())]
        if not addresses:
            raise BrokerUnavailable(f"cluster {cluster!r} has no broker at the moment")
        return addresses

    # -- users --------------------------------------------------------------------------------------------------

    async def create_user(self, addresses: Sequence[str], user: UserInfo) -> None:
        """Creates a user from a name and a password. Default: type Normal, enabled."""
        await self._put_user(RequestCode.AUTH_CREATE_USER, "creating", addresses, user)

    async def update_user(self, addresses: Sequence[str], user: UserInfo) -> None:
        """Changes password, type and status of a user. None leaves a value unchanged."""
        await self._put_user(RequestCode.AUTH_UPDATE_USER, "changing", addresses, user)

    async def delete_user(self, addresses: Sequence[str], username: str) -> None:
        """Deletes a user and its permissions."""
        header = UserRequestHeader(username=username)
        await self._each(
            f"deleting user {username}", addresses, lambda a: self._call(a, RequestCode.AUTH_DELETE_USER, header)
        )

    async def user(self, address: str, username: str) -> UserInfo | None:
        """Returns a user of one broker with its password, or None."""
        response = await self._call(address, RequestCode.AUTH_GET_USER, UserRequestHeader(username=username))
        return decode_json(response.body, UserInfo) if response.body else None

    async def users(self, address: str, name_filter: str = "") -> list[UserInfo]:
        """Returns the users of one broker whose names contain `name_filter`."""
        header = ListUsersRequestHeader(filter=name_filter or None)
        response = await self._call(address, RequestCode.AUTH_LIST_USER, header)
        return decode_json(response.body, list[UserInfo]) if response.body else []

    async def _put_user(self, code: RequestCode, what: str, addresses: Sequence[str], user: UserInfo) -> None:
        header = UserRequestHeader(username=user.username)
        body = encode_json(user)
        await self._each(f"{what} user {user.username}", addresses, lambda a: self._call(a, code, header, body))

    # -- permissions --------------------------------------------------------------------------------------------

    async def create_acl(self, addresses: Sequence[str], acl: AclInfo) -> None:
        """Adds permissions of a subject. An entry for the same resource replaces the old one."""
        await self._put_acl(RequestCode.AUTH_CREATE_ACL, addresses, acl)

    async def update_acl(self, addresses: Sequence[str], acl: AclInfo) -> None:
        """Works like `create_acl`, but with the request code that Java uses for updates."""
        await self._put_acl(RequestCode.AUTH_UPDATE_ACL, addresses, acl)

    async def delete_acl(self, addresses: Sequence[str], subject: str, resource: str | None = None) -> None:
        """Removes the entry for `resource`, or all entries of the subject."""
        header = DeleteAclRequestHeader(subject=subject, resource=resource)
        await self._each(
            f"deleting what {subject} may do", addresses, lambda a: self._call(a, RequestCode.AUTH_DELETE_ACL, header)
        )

    async def acl(self, address: str, subject: str) -> AclInfo | None:
        """Returns the permissions of a subject on one broker, or None."""
        response = await self._call(address, RequestCode.AUTH_GET_ACL, AclRequestHeader(subject=subject))
        return decode_json(response.body, AclInfo) if response.body else None

    async def acls(self, address: str, subject_filter: str = "", resource_filter: str = "") -> list[AclInfo]:
        """Returns the permissions on one broker whose subject and resource contain the filter texts."""
        header = ListAclsRequestHeader(subject_filter=subject_filter or None, resource_filter=resource_filter or None)
        response = await self._call(address, RequestCode.AUTH_LIST_ACL, header)
        return decode_json(response.body, list[AclInfo]) if response.body else []

    async def _put_acl(self, code: RequestCode, addresses: Sequence[str], acl: AclInfo) -> None:
        header = AclRequestHeader(subject=acl.subject)
        body = encode_json(acl)
        await self._each(f"changing what {acl.subject} may do", addresses, lambda a: self._call(a, code, header, body))


def acl_of(
    subject: str, resources: Sequence[str], actions: Sequence[str], source_ips: Sequence[str], decision: str
) -> AclInfo:
    """Returns an object with the permissions: one entry for each resource.

    Args:
        subject: User:NAME.
        resources: Resources, for example Topic:orders.
        actions: Actions: Pub, Sub, All and others.
        source_ips: Client addresses for which the entries apply.
        decision: Allow or Deny.
    """
    entries = [PolicyEntryInfo(resource, list(actions), list(source_ips), decision) for resource in resources]
    return AclInfo(subject, [PolicyInfo(entries=entries)])
