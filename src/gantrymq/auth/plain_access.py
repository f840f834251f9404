"""Checks requests by plain_acl.yml (`PlainPermissionManager.validate`, `PlainPermissionChecker`).

The rules are those of users (`request_permissions`), translated to the permissions in these files:

- Only an admin account can create, change or delete something, or query the whole broker.
- A query of a topic needs PUB or SUB on it.
- A query of a group needs SUB on it.

RocketMQ 5.2, the last version with these files, checks only the signature of most requests.
"""

from __future__ import annotations

from functools import cache

from gantrymq.auth.guard import Caller
from gantrymq.auth.permission import ANYTHING, Guarded, Need, send_need
from gantrymq.auth.plain_acl import Account, Perm, PlainAcl, resource_text
from gantrymq.auth.policy import Action, Pattern, ResourceType
from gantrymq.auth.request_permissions import needs
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.acl_signature import ACCESS_KEY
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TRACE_TOPIC, retry_topic
from gantrymq.remoting.signatures import signature_problem

_CACHE_LIMIT = 10_000


class PlainAccess:
    """Checks requests by the accounts of plain_acl.yml (`PlainAccessValidator`)."""

    def __init__(self, acl: PlainAcl, broker: Guarded, *, needs_bound: bool = False) -> None:
        self.acl = acl
        self._needs_bound = needs_bound
        self._broker = broker
        #: Cached decisions of `_decided_by`: the reason of a refusal, or None if the request is allowed.
        self._decided: dict[tuple[str, Need], str | None] = {}
        self._decided_by = acl

    def use(self, acl: PlainAcl) -> None:
        """Replaces the accounts after a change of the file."""
        self.acl = acl

    def check(self, caller: Caller, request: RemotingCommand) -> None:
        """Checks a request. Raises RequestRefused for an unknown account, a wrong signature or a missing permission.

        Raises HeaderError or BodyError for an invalid request.
        """
        acl = self.acl
        if _is_trusted(acl, caller.host):
            return
        fields = request.ext_fields
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise _refused("No accessKey is configured", RefusalReason.NO_CREDENTIALS)
        account = acl.accounts.get(access_key)
        if account is None:
            raise _refused(f"No acl config for {access_key}")
        if not account.is_trusted(caller.host):
            problem = signature_problem(account.signer, request, caller.opaques, needs_bound=self._needs_bound)
            if problem is not None:
                raise _refused(f"Check signature failed for accessKey={access_key}{problem}")
            if not account.is_admin:
                for need in needs(request, self._broker):
                    problem = self._problem(account, need)
                    if problem is not None:
                        raise _refused(problem)
        caller.name = access_key

    def may_send(self, caller: Caller, topic: str) -> bool:
        """Returns True if the caller may send to the topic."""
        acl = self.acl
        if _is_trusted(acl, caller.host):
            return True
        account = acl.accounts.get(caller.name or "")
        if account is None:
            return False
        return account.is_trusted(caller.host) or account.is_admin or self._problem(account, send_need(topic)) is None

    def is_super(self, caller: Caller) -> bool:
        """Returns False, because these accounts are not users of 5.x."""
        return False

    def _problem(self, account: Account, need: Need) -> str | None:
        """Returns the cached result of `_problem` for an account and a need."""
        if self._decided_by is not self.acl or len(self._decided) >= _CACHE_LIMIT:
            self._decided.clear()
            self._decided_by = self.acl
        key = (account.access_key, need)
        try:
            return self._decided[key]
        except KeyError:
            problem = self._decided[key] = _problem(account, need)
            return problem


def _is_trusted(acl: PlainAcl, host: str) -> bool:
    return any(is_trusted(host) for is_trusted in acl.trusted)


def _problem(account: Account, need: Need) -> str | None:
    """Returns the reason why the account lacks the permission; None if it has the permission."""
    if need is ANYTHING:
        return None if _may_anything(account) else f"No permission for anything: accessKey={account.access_key}"
    resource = need.resource
    needed = _perm(resource.type, need.actions)
    if needed is None:
        actions = "|".join(action.value for action in need.actions)
        return f"Need admin permission for {actions} of {resource}, but accessKey={account.access_key} is not"
    is_group = resource.type is ResourceType.GROUP
    default = account.default_group_perm if is_group else account.default_topic_perm
    if resource.pattern is Pattern.ANY:
        # The request needs the permission for all topics or all groups.
        if default & needed and all(
            perm & needed for name, perm in account.perms.items() if name.startswith(RETRY_TOPIC_PREFIX) is is_group
        ):
            return None
        what = f"all {'groups' if is_group else 'topics'}"
        return f"No permission for {what}: accessKey={account.access_key} needs {needed}"
    name = retry_topic(resource.name) if is_group else resource.name
    owned = account.perms.get(name)
    # Every account can write traces.
    if (default if owned is None else owned) & needed or (name == TRACE_TOPIC and needed is Perm.PUB):
        return None
    what, owned = ("No default permission", default) if owned is None else ("No permission", owned)
    return f"{what} for {resource_text(name)}: accessKey={account.access_key} needs {needed}, has {owned}"


def _may_anything(account: Account) -> bool:
    may = Perm.PUB | Perm.SUB
    perms = (account.default_topic_perm, account.default_group_perm, *account.perms.values())
    return any(perm & may for perm in perms)


@cache
def _perm(kind: ResourceType, actions: tuple[Action, ...]) -> Perm | None:
    """Returns the permissions of which the account needs one; None if the account must be admin."""
    perms = [perm for action, perm in ((Action.PUB, Perm.PUB), (Action.SUB, Perm.SUB)) if action in actions]
    if kind is ResourceType.TOPIC and not perms and Action.GET in actions:
        return Perm.PUB | Perm.SUB
    if kind is ResourceType.GROUP and not perms and Action.GET in actions:
        return Perm.SUB
    return perms[0] if perms and kind is not ResourceType.CLUSTER else None


def _refused(remark: str, reason: RefusalReason | None = None) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, remark, reason)
