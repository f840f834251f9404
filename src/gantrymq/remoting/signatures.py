"""Signs requests and checks signatures. `protocol/acl_signature` defines the signed bytes (AclClientRPCHook)."""

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

#: Largest accepted difference between a bound signature's time and this machine's clock, in milliseconds.
MAX_CLOCK_DIFFERENCE_MS = 300_000
#: A proxy may reorder requests. An opaque number is accepted if its distance to the highest number is less than WINDOW.
WINDOW = 1024
_MASK = (1 << WINDOW) - 1
_MAX_OPAQUE = 0x7FFF_FFFF


class SigningHook:
    """Signs each request with the keys of one user. An `RpcHook` for clients."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.access_key = access_key
        self._signer = Signer(secret_key)
        self._security_token = security_token

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """Adds the access key and the signature to `request`. Its opaque number must be set."""
        fields = request.ext_fields
        fields[ACCESS_KEY] = self.access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        self._signer.sign_request(request, now_ms())

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Does nothing."""


class SignedOpaques:
    """Accepts each signed opaque number of one connection once, to prevent replay.

    A client's opaque numbers increase within a connection, so the highest number and the WINDOW below it suffice.
    """

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        #: Bit n is set if the number `_highest - n` was received.
        self._seen = 0

    def add(self, number: int) -> bool:
        """Returns false if the number was used before or is below the window. Numbers restart at 0 after 2^31 - 1."""
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
    """Returns a text for an invalid signature, or None for a valid signature of this request by `signer`.

    The text begins with ": " and is appended to Java's message. The text is "" if there is nothing to add. If
    `needs_bound` is set, a signature in Java's form is invalid.
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
        apart_s = abs(difference_ms) / 1000
        return f": its time differs from this server's clock by {apart_s:.0f} s, at most 300 s are accepted"
    if not 0 <= opaque <= _MAX_OPAQUE or not opaques.add(opaque):
        return ": the request has come before on this connection"
    return None
