"""Signed requests: the hook that signs them, and the check of one that has come.

Source: acl/common/AclClientRPCHook. What a signature covers is in `protocol/acl_signature`.
"""

from __future__ import annotations

from gantrymq.protocol.acl_signature import (
    ACCESS_KEY,
    BOUND_SIGNATURE,
    SECURITY_TOKEN,
    SIGNED_AT,
    SIGNED_OPAQUE,
    Signer,
)
from gantrymq.protocol.command import RemotingCommand
from gantrymq.system.clock import now_ms

#: A bound signature is accepted if its time differs from this machine's by no more, ms.
MAX_CLOCK_DIFFERENCE_MS = 300_000
#: A proxy may change the order of requests: a signed number may be lower than the highest by less than this.
WINDOW = 1024
_MASK = (1 << WINDOW) - 1
_MAX_OPAQUE = 0x7FFF_FFFF


class SigningHook:
    """Signs every request with one user's keys."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.access_key = access_key
        self._signer = Signer(secret_key)
        self._security_token = security_token

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """Signs `request`, which has its opaque number."""
        fields = request.ext_fields
        fields[ACCESS_KEY] = self.access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        self._signer.sign_request(request, now_ms())

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing to do."""


class SignedOpaques:
    """The signed opaque numbers of one connection: each is accepted once.

    A client counts them up for each connection, so the highest and the WINDOW before it are enough to keep.
    """

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        #: Bit n: the number that is lower than the highest by n has come.
        self._seen = 0

    def add(self, number: int) -> bool:
        """False if the number has come before, or is too old to tell. Numbers begin anew after 2^31 - 1."""
        ahead = (number - self._highest) & _MAX_OPAQUE
        if 0 < ahead <= _MAX_OPAQUE // 2 or not self._seen:
            self._seen = ((self._seen << ahead) | 1) & _MASK if ahead < WINDOW else 1
            self._highest = number
            return True
        bit = 1 << min((self._highest - number) & _MAX_OPAQUE, WINDOW)
        if bit > _MASK or self._seen & bit:
            return False
        self._seen |= bit
        return True


def signature_problem(
    signer: Signer, request: RemotingCommand, opaques: SignedOpaques, *, needs_bound: bool
) -> str | None:
    """What is wrong with a request's signature; None if it is that of `signer`, for this request.

    It begins with ": ", to follow what Java says of any wrong signature, and is "" where there is no more to say. With
    `needs_bound`, a signature in Java's form isn't enough.
    """
    fields = request.ext_fields
    if BOUND_SIGNATURE not in fields:
        if needs_bound:
            return ": it doesn't cover code, opaque and time, which boundSignatureRequired demands"
        return None if signer.is_signed(fields, request.body, request.version) else ""
    if not signer.is_request_signed(request):
        return ""
    try:
        difference_ms = now_ms() - int(fields[SIGNED_AT])
        opaque = int(fields[SIGNED_OPAQUE])
    except (KeyError, ValueError):
        return ": it has no time or no opaque number"
    if abs(difference_ms) > MAX_CLOCK_DIFFERENCE_MS:
        return f": its time is {difference_ms / 1000:.0f} s behind this server's clock, at most 300 s are accepted"
    if not 0 <= opaque <= _MAX_OPAQUE or not opaques.add(opaque):
        return ": the request has come before on this connection"
    return None
