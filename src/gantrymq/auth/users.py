"""Users of 5.x, who sign requests with their password (`auth/authentication/model/User`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from gantrymq.protocol.acl_signature import Signer
from gantrymq.protocol.bodies.auth import UserInfo

E = TypeVar("E", bound=Enum)

#: Prefix of a subject: User:NAME. There are no other kinds of subjects.
_SUBJECT_TYPE = "User"


class UserType(Enum):
    """The type of a user. A super user has all rights."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """The status of a user. A disabled user has no rights."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(slots=True, frozen=True)
class User:
    """One user. The user name is the access key of its requests, and `password` is the secret key."""

    username: str
    password: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signer", Signer(self.password))

    def changed(self, info: UserInfo) -> User:
        """Returns a copy with the non-empty values of `info`. Raises ValueError for an unknown type or status."""
        return replace(
            self,
            password=info.password or self.password,
            user_type=_parse(UserType, "userType", info.user_type) or self.user_type,
            user_status=_parse(UserStatus, "userStatus", info.user_status) or self.user_status,
        )

    def info(self) -> UserInfo:
        return UserInfo(self.username, self.password, self.user_type.value, self.user_status.value)


def subject_of(username: str) -> str:
    return f"{_SUBJECT_TYPE}:{username}"


def username_of(subject: str | None) -> str:
    """Returns the name in a subject User:NAME. Raises ValueError for another text."""
    kind, _, username = (subject or "").partition(":")
    if kind.lower() != _SUBJECT_TYPE.lower() or not username.strip():
        raise ValueError(f"subject {subject!r}: expected User:NAME")
    return username


def _parse(kind: type[E], key: str, text: str | None) -> E | None:
    if not text:
        return None
    for member in kind:
        if str(member.value).lower() == text.lower():
            return member
    raise ValueError(f"{key} {text!r}: expected {' or '.join(str(member.value) for member in kind)}")
