"""Authentication of calls by their signature, and authorization of requests by the user's policies.

Sources: auth/authentication/chain/DefaultAuthenticationHandler, auth/authorization/chain (UserAuthorizationHandler,
AclAuthorizationHandler).
"""

from __future__ import annotations

from google.protobuf.message import Message

from gantrymq.auth.policy import Acl, Decision
from gantrymq.auth.users import User, UserStatus, UserType, subject_of
from gantrymq.errors import GantryError
from gantrymq.proxy.access.request_permissions import needs
from gantrymq.proxy.access.signature import Signed, signed, unauthorized
from gantrymq.proxy.call import METHODS, Call, Slices
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.remoting.address import parse_address

#: The full name of each method's request.
_REQUEST_NAMES = {method.name: method.request.DESCRIPTOR.full_name for method in METHODS.values()}


class Access:
    """Access control of gRPC calls in one proxy."""

    def __init__(self, config: ProxyConfig, metadata: Metadata, clients: Clients) -> None:
        self._clients = clients
        self._metadata = metadata
        self._authenticates = config.authentication_enabled
        self._authorizes = config.authorization_enabled
        #: Full names of requests that need no check, for example apache.rocketmq.v2.QueryRouteRequest.
        self._unauthenticated = frozenset(_listed(config.authentication_whitelist))
        self._unauthorized = frozenset(_listed(config.authorization_whitelist))

    async def authenticate(self, call: Call) -> User | None:
        """Returns the user who signed a call, or None if the call needs no user.

        Reads only the metadata, so that no message is parsed without authentication. Raises ProxyError if the user is
        unknown or disabled, if the signature is wrong, or if no broker returns the user.
        """
        if not self._needs_user(call):
            return None
        sign = _signed(call)
        try:
            user = await self._metadata.user(sign.username)
        except GantryError as e:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"can't ask a broker for user {sign.username}: {e}") from e
        return self._verified(call, sign, user)

    def is_authenticated(self, call: Call) -> bool:
        """Authenticates a call whose message is still incomplete, with cached users only.

        Returns False if the user is not cached; `authenticate` then requests it from a broker. Raises ProxyError as
        `authenticate` does.
        """
        if not self._needs_user(call):
            return True
        sign = _signed(call)
        is_cached, user = self._metadata.cached_user(sign.username)
        if is_cached:
            self._verified(call, sign, user)
        return is_cached

    async def authorize(self, call: Call, user: User | None, request: Message) -> None:
        """Raises ProxyError if the client id belongs to another user, or no policy of the user allows the request."""
        client = self._clients.get(call.client_id)
        if client is not None and user is not None and client.user != user.username:
            raise ProxyError(Code.FORBIDDEN, f"client id {call.client_id} belongs to another user")
        if self._authorizes and request.DESCRIPTOR.full_name not in self._unauthorized:
            # A request without a user needs no rights.
            assert user is not None
            if user.user_type is not UserType.SUPER:
                await self._authorize(call, user.username, request)

    def _needs_user(self, call: Call) -> bool:
        name = _REQUEST_NAMES[call.method]
        return (self._authenticates and name not in self._unauthenticated) or (
            self._authorizes and name not in self._unauthorized
        )

    def _verified(self, call: Call, sign: Signed, user: User | None) -> User:
        if user is None:
            raise unauthorized(f"User:{sign.username} is not found.")
        if user.user_status is UserStatus.DISABLE:
            raise unauthorized(f"User:{sign.username} is disabled.")
        checks_signature = self._authenticates and _REQUEST_NAMES[call.method] not in self._unauthenticated
        if checks_signature and not sign.is_by(user.password):
            raise unauthorized("check signature failed.")
        return user

    async def _authorize(self, call: Call, username: str, request: Message) -> None:
        """Raises ProxyError if a right that the request needs is missing or denied."""
        host = parse_address(call.peer)[0]
        acl: Acl | None = None
        try:
            acl = await self._metadata.acl(username)
        except GantryError as e:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"can't ask a broker what {username} may do: {e}") from e
        async for need in Slices(call, needs(request)):
            entry = None if acl is None else acl.decisive(need.resource, need.actions, host)
            if entry is None or entry.decision is not Decision.ALLOW:
                why = "no matched policies" if entry is None else "the decision is deny"
                raise unauthorized(
                    f"{subject_of(username)} has no permission to access {need.resource} from {host}, {why}. "
                    f"It needs {' or '.join(action.value for action in need.actions)}"
                )


def _signed(call: Call) -> Signed:
    metadata = call.metadata
    return signed(metadata.get("authorization", ""), metadata.get("x-mq-date-time", ""))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
