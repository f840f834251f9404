"""How a slave says to a master with access control who it is: innerClientAuthenticationCredentials, a super user."""

from __future__ import annotations

import msgspec

from gantrymq.auth.config import AuthConfig
from gantrymq.errors import ConfigError
from gantrymq.protocol.acl_signature import ACCESS_KEY, SIGNATURE, Signer
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import RpcHook


class InnerClient:
    """Signs what a broker asks other brokers for (`BrokerOuterAPI.newAclRPCHook`)."""

    def __init__(self, access_key: str, secret_key: str) -> None:
        self._access_key = access_key
        self._signer = Signer(secret_key)

    def before_request(self, address: str, request: RemotingCommand) -> None:
        fields = request.ext_fields
        fields[ACCESS_KEY] = self._access_key
        fields[SIGNATURE] = self._signer.sign(fields, request.body, request.version)

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing to do."""


def inner_client_hooks(config: AuthConfig) -> list[RpcHook]:
    """None where the configuration names no such user. Raises ConfigError."""
    text = config.inner_client_authentication_credentials
    if not text.strip():
        return []
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
        return [InnerClient(given["accessKey"], given["secretKey"])]
    except (ValueError, KeyError):
        raise ConfigError(
            'innerClientAuthenticationCredentials: must be {"accessKey": ..., "secretKey": ...}'
        ) from None
