"""Checks requests by plain_acl.yml (`PlainPermissionManager.validate`, `PlainPermissionChecker`)."""

from __future__ import annotations

from gantrymq.auth.plain_acl import Account, Perm, PlainAcl, shown
from gantrymq.auth.plain_needs import ADMIN_CODES, plain_needs
from gantrymq.errors import RequestRefused
from gantrymq.protocol.acl_signature import ACCESS_KEY
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TRACE_TOPIC


class PlainAccess:
    """`acl` may be replaced at any time."""

    def __init__(self, acl: PlainAcl) -> None:
        self.acl = acl

    def check(self, host: str, request: RemotingCommand) -> None:
        """Raises RequestRefused: no account, a wrong signature, or a permission that is missing."""
        acl = self.acl
        for is_trusted in acl.trusted:
            if is_trusted(host):
                return
        fields = request.ext_fields
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise _refused("No accessKey is configured")
        account = acl.accounts.get(access_key)
        if account is None:
            raise _refused(f"No acl config for {access_key}")
        if account.is_trusted(host):
            return
        if not account.signer.is_signed(fields, request.body, request.version):
            raise _refused(f"Check signature failed for accessKey={access_key}")
        if not account.is_admin:
            _check_permissions(account, request)


def _check_permissions(account: Account, request: RemotingCommand) -> None:
    if request.code in ADMIN_CODES:
        raise _refused(
            f"Need admin permission for request code={request.code}, but accessKey={account.access_key} is not"
        )
    # A heartbeat may name a resource many times.
    needs = dict(plain_needs(request.code, request.ext_fields, request.body))
    if needs.get(TRACE_TOPIC) == Perm.PUB:
        # Every account may write its traces.
        return
    for resource, needed in needs.items():
        owned = account.perms.get(resource)
        what = "No permission"
        if owned is None:
            is_group = resource.startswith(RETRY_TOPIC_PREFIX)
            owned = account.default_group_perm if is_group else account.default_topic_perm
            what = "No default permission"
        if not owned & needed:
            raise _refused(f"{what} for {shown(resource)}: accessKey={account.access_key} needs {needed}, has {owned}")


def _refused(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, remark)
