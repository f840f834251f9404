"""Requests to create, change, delete and list users and permissions (`AdminBrokerProcessor`, codes 3001 to 3010)."""

from __future__ import annotations

from gantrymq.auth.users import User, UserType
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import answer_after
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


class AuthAdmin(Feature):
    """Handles requests about users and permissions. The caller's permissions have been checked already."""

    def __init__(self, context: BrokerContext) -> None:
        self._access = context.access
        self._users = context.access.users

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
        """Creates a user. Only a super user can create a super user."""
        info = _user_info(request)
        self._check_super(connection, info.user_type, "create")
        self._users.create_user(info)
        log.info("%s created user %s", connection.address, info.username)
        return self._when_written(connection, request)

    def update_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Changes a user's password, type or status."""
        info = _user_info(request)
        self._check_super(connection, info.user_type, "update")
        self._check_super(connection, self._type_of(info.username), "update")
        self._users.update_user(info)
        log.info("%s changed user %s", connection.address, info.username)
        return self._when_written(connection, request)

    def delete_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes a user. Succeeds if the user doesn't exist."""
        username = _username(request)
        self._check_super(connection, self._type_of(username), "delete")
        self._users.delete_user(username)
        log.info("%s deleted user %s", connection.address, username)
        return self._when_written(connection, request)

    def get_user(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns a user, or an empty body. Super users also get the password, so that a slave can copy users."""
        user = self._users.users.get(_username(request))
        return RemotingCommand.response(body=b"" if user is None else encode_json(self._user_info(connection, user)))

    def list_users(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the users whose names contain the filter text."""
        wanted = request.read_header(ListUsersRequestHeader).filter or ""
        users = [
            self._user_info(connection, user) for name, user in sorted(self._users.users.items()) if wanted in name
        ]
        return RemotingCommand.response(body=encode_json(users) if users else b"")

    def put_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Adds or replaces permissions of a subject. The subject need not have any yet."""
        subject = request.read_header(AclRequestHeader).subject
        self._users.put_acl(subject, decode_request_json(request.body, AclInfo))
        log.info("%s changed what %s may do", connection.address, subject)
        return self._when_written(connection, request)

    def delete_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes one permission of a subject, or all of them."""
        header = request.read_header(DeleteAclRequestHeader)
        self._users.delete_acl(header.subject, header.policy_type, header.resource)
        log.info("%s changed what %s may do", connection.address, header.subject)
        return self._when_written(connection, request)

    def get_acl(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the permissions of a subject; the body is empty if there are none."""
        info = self._users.acl_info(request.read_header(AclRequestHeader).subject)
        return RemotingCommand.response(body=b"" if info is None else encode_json(info))

    def list_acls(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the permissions that match the filters for subject and resource."""
        header = request.read_header(ListAclsRequestHeader)
        acls = self._users.list_acls(header.subject_filter or "", header.resource_filter or "")
        return RemotingCommand.response(body=encode_json(acls) if acls else b"")

    def _when_written(self, connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, answer_after(self._access.users_written()))
        return None

    def _type_of(self, username: str | None) -> str | None:
        user = self._users.users.get(username or "")
        return None if user is None else user.user_type.value

    def _user_info(self, connection: Connection, user: User) -> UserInfo:
        info = user.info()
        if not self._access.may_see_passwords(connection):
            info.password = None
        return info

    def _check_super(self, connection: Connection, user_type: str | None, what: str) -> None:
        """Raises RequestRefused if a normal user changes a super user. Without access control, every client may."""
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
