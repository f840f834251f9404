"""Access control for clients of the remoting protocol.

The rules are the same as in a broker. The proxy requests users and policies from a broker. It forwards each request
with the client's signature, so a broker with access control checks the request again. The broker also makes checks that
a proxy cannot make, for example which record is at an offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.guard import caller_of
from gantrymq.auth.permission import Guarded, topic_need
from gantrymq.auth.policy import Acl, Action, Decision
from gantrymq.auth.user_access import UserAccess
from gantrymq.auth.user_table import UserTable
from gantrymq.auth.users import User, UserType
from gantrymq.errors import GantryError, RefusalReason, RequestRefused
from gantrymq.protocol.acl_signature import ACCESS_KEY
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.remoting.connection import Connection

T = TypeVar("T")


class RemotingAccess:
    """Checks the requests of the remoting port. Created only if access control is on."""

    def __init__(self, config: ProxyConfig, metadata: Metadata) -> None:
        self._metadata = metadata
        self._authorizes = config.authorization_enabled
        self._table = UserTable()
        self._access = UserAccess(
            AuthConfig(
                authentication_enabled=config.authentication_enabled,
                authorization_enabled=config.authorization_enabled,
                # The broker's rules do not cover route requests, which go to NameServers: see `_check_route`.
                authorization_whitelist=str(int(RequestCode.GET_ROUTEINFO_BY_TOPIC)),
            ),
            Guarded(config.rocket_mq_cluster_name, lambda offset: None),
            self._table,
        )

    async def check(self, connection: Connection, request: RemotingCommand) -> None:
        """Raises RequestRefused if the client may not make this request, or if no broker returns the client's user."""
        username = request.ext_fields.get(ACCESS_KEY, "")
        if username:
            try:
                user = await self._metadata.user(username)
                self._remember(username, user, await self._metadata.acl(username) if user is not None else None)
            except GantryError as e:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"can't ask a broker for user {username[:200]}: {e}"
                ) from e
        caller = caller_of(connection)
        self._access.check(caller, request)
        if self._authorizes and request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._check_route(username, caller.host, request.ext_fields.get("topic", ""))

    def _remember(self, username: str, user: User | None, acl: Acl | None) -> None:
        """Updates the local table of users and policies, which `UserAccess` uses."""
        table = self._table
        if table.users.get(username) == user and table.acls.get(username) == acl:
            return
        table.users = {**table.users, username: user} if user is not None else _without(table.users, username)
        table.acls = {**table.acls, username: acl} if acl is not None else _without(table.acls, username)
        table.generation += 1

    def _check_route(self, username: str, host: str, topic: str) -> None:
        """Raises RequestRefused if the user has none of the rights PUB, SUB and GET for the topic."""
        user, acl = self._table.users.get(username), self._table.acls.get(username)
        if user is not None and user.user_type is UserType.SUPER:
            return
        need = topic_need(topic, (Action.PUB, Action.SUB, Action.GET))
        entry = None if user is None or acl is None else acl.decisive(need.resource, need.actions, host)
        if entry is None or entry.decision is not Decision.ALLOW:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"User:{username} has no permission to access {need.resource} from {host}",
                RefusalReason.NOT_PERMITTED,
            )


def _without(table: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in table.items() if other != name}
