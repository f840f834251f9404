"""Users, and what they may do (`DefaultMQAdminExt.createUser` to `listAcl`)."""

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
    """Each broker has users of its own: what makes or changes one goes to `addresses`, all or the first that fails.

    A subject is written User:NAME.
    """

    async def all_brokers_of(self, cluster: str) -> list[str]:
        """host:port of the cluster's masters and slaves. Raises BrokerUnavailable if there are none."""
        brokers = await self.brokers_of(cluster)
        addresses = [address for broker in brokers for _, address in sorted(broker.broker_addrs.items())]
        if not addresses:
            raise BrokerUnavailable(f"cluster {cluster!r} has no broker at the moment")
        return addresses

    # -- users --------------------------------------------------------------------------------------------------

    async def create_user(self, addresses: Sequence[str], user: UserInfo) -> None:
        """Makes a user, Normal and enabled unless it says otherwise. It needs a name and a password."""
        await self._put_user(RequestCode.AUTH_CREATE_USER, "creating", addresses, user)

    async def update_user(self, addresses: Sequence[str], user: UserInfo) -> None:
        """Changes what isn't None of password, type and status."""
        await self._put_user(RequestCode.AUTH_UPDATE_USER, "changing", addresses, user)

    async def delete_user(self, addresses: Sequence[str], username: str) -> None:
        """Deletes a user and all that it may do."""
        header = UserRequestHeader(username=username)
        await self._each(
            f"deleting user {username}", addresses, lambda a: self._call(a, RequestCode.AUTH_DELETE_USER, header)
        )

    async def user(self, address: str, username: str) -> UserInfo | None:
        """One broker's user with its password, None if it has none of that name."""
        response = await self._call(address, RequestCode.AUTH_GET_USER, UserRequestHeader(username=username))
        return decode_json(response.body, UserInfo) if response.body else None

    async def users(self, address: str, name_filter: str = "") -> list[UserInfo]:
        """One broker's users whose names contain `name_filter`."""
        header = ListUsersRequestHeader(filter=name_filter or None)
        response = await self._call(address, RequestCode.AUTH_LIST_USER, header)
        return decode_json(response.body, list[UserInfo]) if response.body else []

    async def _put_user(self, code: RequestCode, what: str, addresses: Sequence[str], user: UserInfo) -> None:
        header = UserRequestHeader(username=user.username)
        body = encode_json(user)
        await self._each(f"{what} user {user.username}", addresses, lambda a: self._call(a, code, header, body))

    # -- what they may do ---------------------------------------------------------------------------------------

    async def create_acl(self, addresses: Sequence[str], acl: AclInfo) -> None:
        """Adds entries to what a subject may do; one for the same resource replaces the old one."""
        await self._put_acl(RequestCode.AUTH_CREATE_ACL, addresses, acl)

    async def update_acl(self, addresses: Sequence[str], acl: AclInfo) -> None:
        """The same as `create_acl`, under the code that Java has for it."""
        await self._put_acl(RequestCode.AUTH_UPDATE_ACL, addresses, acl)

    async def delete_acl(self, addresses: Sequence[str], subject: str, resource: str | None = None) -> None:
        """Takes away the entry for `resource`, or all that the subject has."""
        header = DeleteAclRequestHeader(subject=subject, resource=resource)
        await self._each(
            f"deleting what {subject} may do", addresses, lambda a: self._call(a, RequestCode.AUTH_DELETE_ACL, header)
        )

    async def acl(self, address: str, subject: str) -> AclInfo | None:
        """What a subject may do at one broker, None if nothing is said of it."""
        response = await self._call(address, RequestCode.AUTH_GET_ACL, AclRequestHeader(subject=subject))
        return decode_json(response.body, AclInfo) if response.body else None

    async def acls(self, address: str, subject_filter: str = "", resource_filter: str = "") -> list[AclInfo]:
        """What all may do at one broker whose User:NAME contains the one text, on resources that contain the other."""
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
    """One entry for each resource: `actions` (Pub, Sub, All ...) are Allow or Deny from these addresses."""
    entries = [PolicyEntryInfo(resource, list(actions), list(source_ips), decision) for resource in resources]
    return AclInfo(subject, [PolicyInfo(entries=entries)])
