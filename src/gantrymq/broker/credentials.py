"""Credentials of a broker for requests to other brokers: `innerClientAuthenticationCredentials`, of a super user."""

from __future__ import annotations

import msgspec

from gantrymq.auth.config import AuthConfig
from gantrymq.errors import ConfigError
from gantrymq.remoting.connection import RpcHook
from gantrymq.remoting.signatures import SigningHook
from gantrymq.replication.authentication import Credentials


def inner_client(config: AuthConfig) -> Credentials | None:
    """Returns the credentials in the configuration, None if there are none. Raises ConfigError if they are invalid."""
    text = config.inner_client_authentication_credentials
    if not text.strip():
        return None
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
        return Credentials(given["accessKey"], given["secretKey"])
    except (ValueError, KeyError):
        raise ConfigError(
            'innerClientAuthenticationCredentials: must be {"accessKey": ..., "secretKey": ...}'
        ) from None


def inner_client_hooks(config: AuthConfig) -> list[RpcHook]:
    """Returns a hook that signs requests with these credentials, if there are any. Raises ConfigError.

    Source: BrokerOuterAPI.newAclRPCHook.
    """
    credentials = inner_client(config)
    return [] if credentials is None else [SigningHook(credentials.access_key, credentials.secret_key)]
