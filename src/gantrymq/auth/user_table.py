"""The table of users and their policies. `broker/tables/access_control.py` stores it in one file.

Java stores them in two RocksDB directories (`LocalAuthenticationMetadataProvider`,
`LocalAuthorizationMetadataProvider`). The rules are those of `AuthenticationMetadataManagerImpl` and
`AuthorizationMetadataManagerImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.policy import Acl, PolicyType, Resource
from gantrymq.auth.users import User, UserType, subject_of, username_of
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import encode_json

#: Limits: number of users, and of policy entries of one user.
MAX_USERS = 10_000
MAX_ENTRIES = 10_000
#: Number of users in one encoded piece.
_PIECE = 100


class UsersFile(msgspec.Struct):
    """The content of the file, including the passwords, which are needed to verify signatures."""

    users: list[UserInfo] = []
    acls: list[AclInfo] = []


class UserTable:
    """The users and their policies: `users` and `acls`, both by user name.

    Callers read both mappings, but change them only through the methods. After each change, `generation` increases and
    `on_change` is called. The methods raise RequestRefused for an invalid change.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.users: Mapping[str, User] = {}
        self.acls: Mapping[str, Acl] = {}
        self.generation = 0

    def load(self, config: AuthConfig, content: UsersFile | None = None) -> None:
        """Loads the file and creates missing configured super users. Raises ConfigError if such a user is invalid."""
        if content is not None:
            self.users, self.acls = tables_of(content)
        for key, text, name_key, password_key in (
            ("initAuthenticationUser", config.init_authentication_user, "username", "password"),
            (
                "innerClientAuthenticationCredentials",
                config.inner_client_authentication_credentials,
                "accessKey",
                "secretKey",
            ),
        ):
            if text.strip():
                user = _super_user(key, text, name_key, password_key)
                if user.username not in self.users:
                    self._set({**self.users, user.username: user}, self.acls)

    def encode(self) -> Iterator[bytes]:
        """Yields the current content of the file in pieces."""
        # Changes replace both mappings, so the generator has a consistent state.
        return _encoded(self.users, self.acls)

    def copy(self, content: UsersFile) -> None:
        """Replaces the table by the table of another broker. Raises ValueError for an invalid table."""
        users, acls = tables_of(content)
        if users != self.users or acls != self.acls:
            self._set(users, acls)

    # -- users --------------------------------------------------------------------------------------------------

    def create_user(self, info: UserInfo) -> None:
        """Creates a user. Raises RequestRefused if the user exists or is invalid, or if there are too many users."""
        username = _username(info.username)
        if not (info.password or "").strip():
            raise _refused("password can not be blank")
        if username in self.users:
            raise _refused("The user is existed")
        if len(self.users) >= MAX_USERS:
            raise _refused(f"the limit of {MAX_USERS} users is reached")
        user = _checked(User(username, info.password or ""), info)
        self._set({**self.users, username: user}, self.acls)

    def update_user(self, info: UserInfo) -> None:
        """Changes the values of a user that `info` contains."""
        user = self._user(_username(info.username))
        self._set({**self.users, user.username: _checked(user, info)}, self.acls)

    def delete_user(self, username: str) -> None:
        """Deletes a user and its policies. An unknown name has no effect."""
        self._set(
            {name: user for name, user in self.users.items() if name != username},
            {name: acl for name, acl in self.acls.items() if name != username},
        )

    # -- policies ---------------------------------------------------------------------------------------

    def put_acl(self, subject: str | None, info: AclInfo) -> None:
        """Adds policy entries to a subject. An existing entry for the same resource is replaced."""
        try:
            username = username_of(info.subject or subject)
            new = Acl.from_info(info.policies)
        except ValueError as e:
            raise _refused(str(e)) from e
        if username not in self.users:
            raise _refused(f"The subject of {subject_of(username)} is not exist.")
        acl = self._copy(username)
        acl.update(new)
        if sum(map(len, acl.policies.values())) > MAX_ENTRIES:
            raise _refused(f"{subject_of(username)} would have more than {MAX_ENTRIES} entries")
        self._set(self.users, {**self.acls, username: acl})

    def delete_acl(self, subject: str | None, policy_type: str | None, resource: str | None) -> None:
        """Deletes the subject's entry for `resource`. Without a resource, deletes all its entries."""
        username = self._subject(subject)
        if username not in self.acls:
            raise _refused("The acl is not exist.")
        acl = Acl()
        if resource and resource.strip():
            acl = self._copy(username)
            try:
                acl.remove(PolicyType.parse(policy_type) or PolicyType.CUSTOM, Resource.parse(resource))
            except ValueError as e:
                raise _refused(str(e)) from e
        acls = {**self.acls, username: acl}
        if not acl.policies:
            del acls[username]
        self._set(self.users, acls)

    def acl_info(self, subject: str | None) -> AclInfo | None:
        """Returns the policies of a subject; None if it has no entries."""
        username = self._subject(subject)
        acl = self.acls.get(username)
        return None if acl is None else acl.info(subject_of(username))

    def list_acls(self, subject_filter: str, resource_filter: str) -> list[AclInfo]:
        """Returns the policies of matching subjects, with the entries whose resource contains `resource_filter`."""
        found = []
        for username in sorted(self.acls):
            subject = subject_of(username)
            if subject_filter in subject:
                # As in Java, a subject that itself contains `resource_filter` is returned with all its entries.
                info = self.acls[username].info(subject, "" if resource_filter in subject else resource_filter)
                if info.policies:
                    found.append(info)
        return found

    def _user(self, username: str) -> User:
        user = self.users.get(username)
        if user is None:
            raise _refused("The user is not exist")
        return user

    def _subject(self, subject: str | None) -> str:
        """Returns the user name of a subject. Raises RequestRefused if there is no such user."""
        try:
            username = username_of(subject)
        except ValueError as e:
            raise _refused(str(e)) from e
        if username not in self.users:
            raise _refused("The subject is not exist.")
        return username

    def _copy(self, username: str) -> Acl:
        acl = self.acls.get(username, Acl())
        return Acl({policy_type: dict(entries) for policy_type, entries in acl.policies.items()})

    def _set(self, users: Mapping[str, User], acls: Mapping[str, Acl]) -> None:
        self.users, self.acls = users, acls
        self.generation += 1
        self._on_change()


def _encoded(users: Mapping[str, User], acls: Mapping[str, Acl]) -> Iterator[bytes]:
    yield b'{"users":['
    yield from _list(sorted(users), lambda name: users[name].info())
    yield b'],"acls":['
    yield from _list(sorted(acls), lambda name: acls[name].info(subject_of(name)))
    yield b"]}"


def _list(names: list[str], info: Callable[[str], UserInfo | AclInfo]) -> Iterator[bytes]:
    for start in range(0, len(names), _PIECE):
        part = encode_json([info(name) for name in names[start : start + _PIECE]])[1:-1]
        yield b"," + part if start else part


def tables_of(content: UsersFile) -> tuple[dict[str, User], dict[str, Acl]]:
    """Converts a file's content to users and policies by name. Raises ValueError if it is invalid."""
    users = {
        info.username: User(info.username, info.password or "").changed(info) for info in content.users if info.username
    }
    return users, {username_of(info.subject): Acl.from_info(info.policies) for info in content.acls}


def _super_user(key: str, text: str, name_key: str, password_key: str) -> User:
    """Converts a configured super user. Raises ConfigError if the JSON is invalid."""
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
        username, password = given[name_key], given[password_key]
    except (ValueError, KeyError):
        raise ConfigError(f'{key}: must be {{"{name_key}": ..., "{password_key}": ...}}') from None
    if not username.strip() or not password.strip():
        raise ConfigError(f"{key}: {name_key} and {password_key} must not be blank")
    return User(username, password, UserType.SUPER)


def _username(username: str | None) -> str:
    if not (username or "").strip():
        raise _refused("username can not be blank")
    return username or ""


def _checked(user: User, info: UserInfo) -> User:
    try:
        return user.changed(info)
    except ValueError as e:
        raise _refused(str(e)) from e


def _refused(remark: str) -> RequestRefused:
    """Returns an error with Java's code, NO_PERMISSION (`AdminBrokerProcessor.handleAuthException`)."""
    return RequestRefused(ResponseCode.NO_PERMISSION, remark)
