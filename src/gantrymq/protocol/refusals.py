"""Encodes the reason for a refused request in a response, and creates the client's error for it."""

from __future__ import annotations

from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java_remarks import reason_of
from gantrymq.protocol.private_fields import REASON_FIELD

_REASONS = {reason.value: reason for reason in RefusalReason}


def reason_fields(reason: RefusalReason | None) -> dict[str, str]:
    """Returns the header fields of a response with this reason."""
    return {} if reason is None else {REASON_FIELD: reason.value}


def refusal_reason(response: RemotingCommand) -> RefusalReason | None:
    """Returns the reason in a response; None without a reason, and for a reason that this version does not define."""
    reason = _REASONS.get(response.ext_fields.get(REASON_FIELD, ""))
    return reason if reason is not None else reason_of(response.code, response.remark or "")


def broker_error(response: RemotingCommand, address: str) -> BrokerError:
    """Returns the error for an unsuccessful response of the server at `address`, HOST:PORT."""
    return BrokerError(response.code, response.remark, address, refusal_reason(response))
