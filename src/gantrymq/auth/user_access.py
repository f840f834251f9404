"""Checks requests by users and their policies.

Source: auth/authentication/chain/DefaultAuthenticationHandler, auth/authorization/chain/UserAuthorizationHandler,
AclAuthorizationHandler.
"""

from __future__ import annotations

from gantrymq.auth.config import AuthConfig, request_codes
from gantrymq.auth.needs import Need, needs
from gantrymq.auth.policy import Decision
from gantrymq.auth.user_table import UserTable
from gantrymq.auth.users import User, UserStatus, UserType, subject_of
from gantrymq.errors import RequestRefused
from gantrymq.protocol.acl_signature import ACCESS_KEY
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand

#: What is remembered of decisions; a client repeats itself.
_CACHE_LIMIT = 10_000


class UserAccess:
    """Who the user is (`authenticationEnabled`), and what it may do (`authorizationEnabled`)."""

    def __init__(self, config: AuthConfig, cluster: str, table: UserTable) -> None:
        self._cluster = cluster
        self._table = table
        self._authenticates = config.authentication_enabled
        self._authorizes = config.authorization_enabled
        self._unauthenticated = request_codes(config.authentication_whitelist)
        self._unauthorized = request_codes(config.authorization_whitelist)
        #: Why a user may not, None where it may.
        self._decided: dict[tuple[str, Need, str], str | None] = {}
        self._generation = table.generation

    def check(self, host: str, request: RemotingCommand) -> None:
        """Raises RequestRefused: no known user, a wrong signature, or no policy that allows it."""
        if self._authenticates and request.code not in self._unauthenticated:
            self._authenticate(request)
        if self._authorizes and request.code not in self._unauthorized:
            self._authorize(host, request)

    def _authenticate(self, request: RemotingCommand) -> None:
        fields = request.ext_fields
        username = fields.get(ACCESS_KEY)
        if not username:
            raise _refused("username cannot be null.")
        user = self._table.users.get(username)
        if user is None:
            raise _refused(f"User:{username} is not found.")
        _check_enabled(user)
        if not user.signer.is_signed(fields, request.body, request.version):
            raise _refused(f"check signature failed. User:{username}")

    def _authorize(self, host: str, request: RemotingCommand) -> None:
        fields = request.ext_fields
        wanted = needs(request.code, fields, request.body, self._cluster)
        username = fields.get(ACCESS_KEY, "")
        user = self._table.users.get(username)
        if user is not None:
            _check_enabled(user)
            if user.user_type is UserType.SUPER:
                return
        if self._generation != self._table.generation:
            self._decided.clear()
            self._generation = self._table.generation
        for need in wanted:
            if user is None:
                raise _refused(f"User:{username} not found." if username else "Authorization failed: no user is named.")
            key = (username, need, host)
            try:
                problem = self._decided[key]
            except KeyError:
                if len(self._decided) >= _CACHE_LIMIT:
                    self._decided.clear()
                problem = self._decided[key] = self._problem(username, need, host)
            if problem is not None:
                raise _refused(problem)

    def _problem(self, username: str, need: Need, host: str) -> str | None:
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


def _refused(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, remark)
