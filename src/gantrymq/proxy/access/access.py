"""Access: lets a request pass, or not, by its signature and its user's policies.

Sources: auth/authentication/chain/DefaultAuthenticationHandler, auth/authorization/chain (UserAuthorizationHandler,
AclAuthorizationHandler).
"""

from __future__ import annotations

from google.protobuf.message import Message

from gantrymq.auth.policy import Acl, Decision
from gantrymq.auth.users import User, UserStatus, UserType, subject_of
from gantrymq.errors import GantryError
from gantrymq.proxy.access.needs import needs
from gantrymq.proxy.access.signature import Signed, signed, unauthorized
from gantrymq.proxy.call import Call
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.remoting.address import parse_address


class Access:
    """Of one proxy, which has it on."""

    def __init__(self, config: ProxyConfig, metadata: Metadata) -> None:
        self._metadata = metadata
        self._authenticates = config.authentication_enabled
        self._authorizes = config.authorization_enabled
        #: Full names of requests, as apache.rocketmq.v2.QueryRouteRequest.
        self._unauthenticated = frozenset(_listed(config.authentication_whitelist))
        self._unauthorized = frozenset(_listed(config.authorization_whitelist))

    async def check(self, call: Call, request: Message) -> None:
        """Raises ProxyError: no known user, a wrong signature, or no policy that allows it."""
        name = request.DESCRIPTOR.full_name
        wants_user = self._authenticates and name not in self._unauthenticated
        wants_rights = self._authorizes and name not in self._unauthorized
        if not wants_user and not wants_rights:
            return
        metadata = call.metadata
        sign = signed(metadata.get("authorization", ""), metadata.get("x-mq-date-time", ""))
        user = await self._user(sign)
        if wants_user and not sign.is_by(user.password):
            raise unauthorized("check signature failed.")
        if wants_rights and user.user_type is not UserType.SUPER:
            await self._authorize(user.username, parse_address(call.peer)[0], request)

    async def _user(self, sign: Signed) -> User:
        try:
            user = await self._metadata.user(sign.username)
        except GantryError as e:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"can't ask a broker for user {sign.username}: {e}") from e
        if user is None:
            raise unauthorized(f"User:{sign.username} is not found.")
        if user.user_status is UserStatus.DISABLE:
            raise unauthorized(f"User:{sign.username} is disabled.")
        return user

    async def _authorize(self, username: str, host: str, request: Message) -> None:
        acl: Acl | None = None
        try:
            acl = await self._metadata.acl(username)
        except GantryError as e:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"can't ask a broker what {username} may do: {e}") from e
        for need in needs(request):
            entry = None if acl is None else acl.decisive(need.resource, need.actions, host)
            if entry is None or entry.decision is not Decision.ALLOW:
                why = "no matched policies" if entry is None else "the decision is deny"
                raise unauthorized(
                    f"{subject_of(username)} has no permission to access {need.resource} from {host}, {why}. "
                    f"It needs {' or '.join(action.value for action in need.actions)}"
                )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
