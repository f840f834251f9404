"""Access control of a controller: with `authenticationEnabled`, each request needs the signature of a super user.

A controller has no user table. Its two users are in its configuration, under the same keys as a broker's. Brokers sign
with `innerClientAuthenticationCredentials`, and the controller signs its notifications with the same credentials.
Administrators sign with either user.
"""

from __future__ import annotations

import msgspec

from gantrymq.controller.config import ControllerConfig
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.acl_signature import ACCESS_KEY, Signer
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler, RpcHook
from gantrymq.remoting.signatures import SignedOpaques, SigningHook, signature_problem

log = peer_log(__name__)

_OPAQUES = "signed opaques"


class ControllerAccess:
    """Checks the signatures of requests. Raises ConfigError if a configured user is invalid, or if there is none."""

    def __init__(self, config: ControllerConfig) -> None:
        self._is_on = config.authentication_enabled
        self._needs_bound = config.bound_signature_required
        inner = _user(
            "innerClientAuthenticationCredentials",
            config.inner_client_authentication_credentials,
            "accessKey",
            "secretKey",
        )
        first = _user("initAuthenticationUser", config.init_authentication_user, "username", "password")
        #: Sign the controller's own requests.
        self.hooks: list[RpcHook] = [] if inner is None else [SigningHook(*inner)]
        self._signers = {user[0]: Signer(user[1]) for user in (first, inner) if user is not None}
        if self._is_on and not self._signers:
            raise ConfigError(
                "authenticationEnabled=true: set innerClientAuthenticationCredentials, with which brokers sign"
            )

    def guarded(self, handlers: dict[int, RequestHandler]) -> dict[int, RequestHandler]:
        """Returns the handlers, with a signature check before each one if authentication is enabled."""
        if not self._is_on:
            return handlers
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: RequestHandler) -> RequestHandler:
        def guard(connection: Connection, request: RemotingCommand) -> Reply:
            problem = self._problem(connection, request)
            if problem is not None:
                log.info("request %d of %s is refused: %s", request.code, connection.address, problem)
                raise RequestRefused(ResponseCode.NO_PERMISSION, problem)
            return handler(connection, request)

        return guard

    def _problem(self, connection: Connection, request: RemotingCommand) -> str | None:
        access_key = request.ext_fields.get(ACCESS_KEY)
        if not access_key:
            return "the controller needs a signature, the request has none (innerClientAuthenticationCredentials)"
        signer = self._signers.get(access_key)
        if signer is None:
            return f"User:{access_key[:200]} is not found."
        opaques = connection.attributes.get(_OPAQUES)
        if opaques is None:
            opaques = connection.attributes[_OPAQUES] = SignedOpaques()
        problem = signature_problem(signer, request, opaques, needs_bound=self._needs_bound)
        return None if problem is None else f"check signature failed. User:{access_key}{problem}"


def _user(key: str, text: str, name_key: str, password_key: str) -> tuple[str, str] | None:
    """Returns name and password, or None for a blank text."""
    if not text.strip():
        return None
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
        user = given[name_key], given[password_key]
    except (ValueError, KeyError):
        user = "", ""
    if not all(part.strip() for part in user):
        # The error does not quote the text, because it contains a secret.
        raise ConfigError(f'{key}: must be {{"{name_key}": ..., "{password_key}": ...}}')
    return user
