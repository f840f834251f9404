"""Users, who sign requests with their password (`auth/authentication/model/User`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from gantrymq.protocol.acl_signature import Signer
from gantrymq.protocol.bodies.auth import UserInfo

E = TypeVar("E", bound=Enum)

#: A subject is written User:name; there is no other kind.
_SUBJECT_TYPE = "User"


class UserType(Enum):
    """A super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """A disabled user may do nothing."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(slots=True, frozen=True)
class User:
    """`password` is the secret key, the name the access key."""

    username: str
    password: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signer", Signer(self.password))

    def changed(self, info: UserInfo) -> User:
        """With what `info` says; what it leaves out stays. Raises ValueError for an unknown type or status."""
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
    """The name in User:name. Raises ValueError."""
    kind, _, username = (subject or "").partition(":")
    if kind.lower() != _SUBJECT_TYPE.lower() or not username.strip():
        raise ValueError(f"subject {subject!r}: User:NAME is known")
    return username


def _parse(kind: type[E], key: str, text: str | None) -> E | None:
    if not text:
        return None
    for member in kind:
        if str(member.value).lower() == text.lower():
            return member
    raise ValueError(f"{key} {text!r}: {' and '.join(str(member.value) for member in kind)} are known")
