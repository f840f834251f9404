"""Users and what they may do, made, changed and listed from outside (`AdminBrokerProcessor`, codes 3001 to 3010)."""

from __future__ import annotations

from gantrymq.auth.users import User, UserType
from gantrymq.broker.access_control import AccessControl
from gantrymq.broker.part import Part
from gantrymq.broker.saving import answer_after
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.headers.auth import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

log = peer_log(__name__)


class AuthAdmin(Part):
    """Requests about `access.users`. Whether the caller may make them was checked before."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._users = access.users

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.put_acl,
            RequestCode.AUTH_UPDATE_ACL: self.put_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }

    def create_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A new user; only a super user makes super users."""
        info = _user_info(request)
        self._check_super(connection, info.user_type, "create")
        self._users.create_user(info)
        log.info("%s created user %s", connection.address, info.username)
        return self._when_written(connection, request)

    def update_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Another password, type or status."""
        info = _user_info(request)
        self._check_super(connection, info.user_type, "update")
        self._check_super(connection, self._type_of(info.username), "update")
        self._users.update_user(info)
        log.info("%s changed user %s", connection.address, info.username)
        return self._when_written(connection, request)

    def delete_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A user that isn't there is deleted already."""
        username = _username(request)
        self._check_super(connection, self._type_of(username), "delete")
        self._users.delete_user(username)
        log.info("%s deleted user %s", connection.address, username)
        return self._when_written(connection, request)

    def get_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """One user; no body for one that isn't there. A super user is shown the password, for copies of users."""
        user = self._users.users.get(_username(request))
        return RemotingCommand.response(body=b"" if user is None else encode_json(self._shown(connection, user)))

    def list_users(self, connection: Connection, request: RemotingCommand) -> Reply:
        wanted = request.read_header(ListUsersRequestHeader).filter or ""
        users = [self._shown(connection, user) for name, user in sorted(self._users.users.items()) if wanted in name]
        return RemotingCommand.response(body=encode_json(users) if users else b"")

    def put_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Adds and replaces entries, whether the subject had some before or not."""
        subject = request.read_header(AclRequestHeader).subject
        self._users.put_acl(subject, decode_request_json(request.body, AclInfo))
        log.info("%s changed what %s may do", connection.address, subject)
        return self._when_written(connection, request)

    def delete_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """One entry, or all that a subject has."""
        header = request.read_header(DeleteAclRequestHeader)
        self._users.delete_acl(header.subject, header.policy_type, header.resource)
        log.info("%s changed what %s may do", connection.address, header.subject)
        return self._when_written(connection, request)

    def get_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """What a subject may do; no body where that is nothing."""
        info = self._users.acl_info(request.read_header(AclRequestHeader).subject)
        return RemotingCommand.response(body=b"" if info is None else encode_json(info))

    def list_acls(self, connection: Connection, request: RemotingCommand) -> Reply:
        header = request.read_header(ListAclsRequestHeader)
        acls = self._users.list_acls(header.subject_filter or "", header.resource_filter or "")
        return RemotingCommand.response(body=encode_json(acls) if acls else b"")

    def _when_written(self, connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, answer_after(self._access.users_written()))
        return None

    def _type_of(self, username: str | None) -> str | None:
        user = self._users.users.get(username or "")
        return None if user is None else user.user_type.value

    def _shown(self, connection: Connection, user: User) -> UserInfo:
        info = user.info()
        if not self._access.may_see_passwords(connection):
            info.password = None
        return info

    def _check_super(self, connection: Connection, user_type: str | None, what: str) -> None:
        """Refuses another than a super user to touch one; without access control everybody may do everything."""
        if (user_type or "").lower() == UserType.SUPER.value.lower() and not self._access.is_super(connection):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"The super user can only be {what}d by super user")


def _username(request: RemotingCommand) -> str:
    username = request.read_header(UserRequestHeader).username or ""
    if not username.strip():
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return username


def _user_info(request: RemotingCommand) -> UserInfo:
    username = _username(request)
    info = decode_request_json(request.body, UserInfo)
    info.username = username
    return info
