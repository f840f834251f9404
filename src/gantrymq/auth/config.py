"""The keys of access control in broker.conf (`AuthConfig`, `BrokerConfig.aclEnable`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.errors import ConfigError

#: Keys with secret values, which must not be printed.
SECRET_KEYS = ("initAuthenticationUser", "innerClientAuthenticationCredentials")


@dataclass
class AuthConfig:
    """The configuration of access control. Without these keys, requests are not checked.

    White lists are request codes, separated by commas. `init_authentication_user` ({"username": ..., "password": ...})
    and `inner_client_authentication_credentials` ({"accessKey": ..., "secretKey": ...}) are super users. The broker
    creates them at the start if they do not exist.
    """

    #: Access control of 4.x, by accounts of plain_acl.yml.
    acl_enable: bool = False
    #: A system property in Java. Default: plain_acl.yml beside the configuration file.
    plain_acl_file: Path | None = field(default=None, metadata={"key": "rocketmq.acl.plain.file"})
    #: Access control of 5.x, by users who sign requests, and their policies.
    authentication_enabled: bool = False
    authentication_whitelist: str = ""
    #: Requires a signature of code, opaque and time, which older clients and Java's clients do not send.
    bound_signature_required: bool = False
    init_authentication_user: str = field(default="", repr=False)
    inner_client_authentication_credentials: str = field(default="", repr=False)
    authorization_enabled: bool = False
    authorization_whitelist: str = ""

    def __post_init__(self) -> None:
        if self.acl_enable and (self.authentication_enabled or self.authorization_enabled):
            raise ConfigError(
                "aclEnable is access control of 4.x, authenticationEnabled and authorizationEnabled are that of 5.x: "
                "enable one of the two"
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
    """Returns the codes of a white list. Raises ValueError for an invalid code."""
    return frozenset(int(part) for part in text.split(",") if part.strip())
