"""The keys of access control in broker.conf (`AuthConfig`, `BrokerConfig.aclEnable`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.errors import ConfigError

#: Not to be shown: they hold secrets.
SECRET_KEYS = ("initAuthenticationUser", "innerClientAuthenticationCredentials")


@dataclass
class AuthConfig:
    """Nothing is checked by default. White lists are request codes, separated by commas.

    `init_authentication_user` ({"username": ..., "password": ...}) and `inner_client_authentication_credentials`
    ({"accessKey": ..., "secretKey": ...}) are super users that are made at the start if they aren't there.
    """

    #: 4.x: accounts of plain_acl.yml.
    acl_enable: bool = False
    #: Java's system property; without it, plain_acl.yml beside the configuration file.
    plain_acl_file: Path | None = field(default=None, metadata={"key": "rocketmq.acl.plain.file"})
    #: 5.x: users, who sign their requests, and what each may do.
    authentication_enabled: bool = False
    authentication_whitelist: str = ""
    #: Requests need a signature that covers code, opaque and time; older clients, and Java's, can't make one.
    bound_signature_required: bool = False
    init_authentication_user: str = field(default="", repr=False)
    inner_client_authentication_credentials: str = field(default="", repr=False)
    authorization_enabled: bool = False
    authorization_whitelist: str = ""

    def __post_init__(self) -> None:
        if self.acl_enable and (self.authentication_enabled or self.authorization_enabled):
            raise ConfigError(
                "aclEnable is access control of 4.x, authenticationEnabled and authorizationEnabled are that of 5.x: "
                "a broker has one of the two"
            )
        for key, text in (
            ("authenticationWhitelist", self.authentication_whitelist),
            ("authorizationWhitelist", self.authorization_whitelist),
        ):
            try:
                request_codes(text)
            except ValueError as e:
                raise ConfigError(f"{key}={text[:200]}: must be request codes separated by commas") from e


def request_codes(text: str) -> frozenset[int]:
    """The codes of a white list. Raises ValueError."""
    return frozenset(int(part) for part in text.split(",") if part.strip())
