"""Checks requests by the users of 5.x and their policies.

Source: auth/authentication/chain/DefaultAuthenticationHandler, auth/authorization/chain/UserAuthorizationHandler,
AclAuthorizationHandler.
"""

from __future__ import annotations

from gantrymq.auth.config import AuthConfig, request_codes
from gantrymq.auth.guard import Caller
from gantrymq.auth.permission import Guarded, Need, send_need
from gantrymq.auth.policy import Decision
from gantrymq.auth.request_permissions import needs
from gantrymq.auth.user_table import UserTable
from gantrymq.auth.users import User, UserStatus, UserType, subject_of
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.acl_signature import ACCESS_KEY
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.signatures import signature_problem

_CACHE_LIMIT = 10_000


class UserAccess:
    """Checks the signature (`authenticationEnabled`) and the policies (`authorizationEnabled`) of a request."""

    def __init__(self, config: AuthConfig, broker: Guarded, table: UserTable) -> None:
        self._broker = broker
        self._table = table
        self._authenticates = config.authentication_enabled
        self._authorizes = config.authorization_enabled
        self._needs_bound = config.bound_signature_required
        self._unauthenticated = request_codes(config.authentication_whitelist)
        self._unauthorized = request_codes(config.authorization_whitelist)
        #: Cached decisions: the reason of a refusal, or None if the request is allowed.
        self._decided: dict[tuple[str, Need, str], str | None] = {}
        self._generation = table.generation

    def check(self, caller: Caller, request: RemotingCommand) -> None:
        """Checks a request. Raises RequestRefused for an unknown user or a wrong signature.

        Also raises RequestRefused if no policy allows the request, and HeaderError or BodyError for an invalid request.
        """
        if not self._authenticates:
            caller.name = request.ext_fields.get(ACCESS_KEY)
        elif request.code not in self._unauthenticated:
            caller.name = self._authenticated(caller, request)
        if self._authorizes and request.code not in self._unauthorized:
            self._authorize(caller.host, request)

    def may_send(self, caller: Caller, topic: str) -> bool:
        """Returns True if the caller may send SEND_MESSAGE_V2 to the topic."""
        code = RequestCode.SEND_MESSAGE_V2
        user = self._table.users.get(caller.name or "")
        is_known = user is not None and user.user_status is UserStatus.ENABLE
        if self._authenticates and code not in self._unauthenticated and not is_known:
            return False
        if not self._authorizes or code in self._unauthorized:
            return True
        if user is None or not is_known:
            return False
        return user.user_type is UserType.SUPER or self._problem(user.username, send_need(topic), caller.host) is None

    def is_super(self, caller: Caller) -> bool:
        """Returns True if the caller is a super user. Without authentication, its name is not verified."""
        user = self._table.users.get(caller.name or "")
        return user is not None and user.user_type is UserType.SUPER and user.user_status is UserStatus.ENABLE

    def _authenticated(self, caller: Caller, request: RemotingCommand) -> str:
        """Checks the signature. Returns the user's name."""
        fields = request.ext_fields
        username = fields.get(ACCESS_KEY)
        if not username:
            raise _refused("username cannot be null.", RefusalReason.NO_CREDENTIALS)
        user = self._table.users.get(username)
        if user is None:
            raise _refused(f"User:{username} is not found.")
        _check_enabled(user)
        problem = signature_problem(user.signer, request, caller.opaques, needs_bound=self._needs_bound)
        if problem is not None:
            raise _refused(f"check signature failed. User:{username}{problem}")
        return username

    def _authorize(self, host: str, request: RemotingCommand) -> None:
        """Checks the user's policies. Raises RequestRefused if a need is not allowed."""
        username = request.ext_fields.get(ACCESS_KEY, "")
        user = self._table.users.get(username)
        if user is None:
            if not username:
                raise _refused("Authorization failed: no user is named.", RefusalReason.NO_CREDENTIALS)
            raise _refused(f"User:{username} not found.")
        _check_enabled(user)
        if user.user_type is UserType.SUPER:
            return
        for need in needs(request, self._broker):
            problem = self._problem(username, need, host)
            if problem is not None:
                raise _refused(problem, RefusalReason.NOT_PERMITTED)

    def _problem(self, username: str, need: Need, host: str) -> str | None:
        """Returns the reason why the user lacks the permission; None if the user has the permission."""
        if self._generation != self._table.generation:
            self._decided.clear()
            self._generation = self._table.generation
        key = (username, need, host)
        try:
            return self._decided[key]
        except KeyError:
            pass
        if len(self._decided) >= _CACHE_LIMIT:
            self._decided.clear()
        problem = self._decided[key] = self._decide(username, need, host)
        return problem

    def _decide(self, username: str, need: Need, host: str) -> str | None:
        """Returns the reason why the user's policies do not allow a need; None if they do."""
        acl = self._table.acls.get(username)
        entry = None if acl is None else acl.decisive(need.resource, need.actions, host)
        if entry is not None and entry.decision is Decision.ALLOW:
            return None
        why = "no matched policies" if entry is None else "the decision is deny"
        return (
            f"{subject_of(username)} has no permission to access {need.resource} from {host}, {why}. "
            f"It needs {' or '.join(action.value for action in need.actions)}"
        )


def _check_enabled(user: User) -> None:
    if user.user_status is UserStatus.DISABLE:
        raise _refused(f"User:{user.username} is disabled.")


def _refused(remark: str, reason: RefusalReason | None = None) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, remark, reason)
