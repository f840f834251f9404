"""Refusals: the reason in a response, and the error that a client raises for it."""

from __future__ import annotations

from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java_remarks import reason_of
from gantrymq.protocol.private_fields import REASON_FIELD

_REASONS = {reason.value: reason for reason in RefusalReason}


def reason_fields(reason: RefusalReason | None) -> dict[str, str]:
    """The header fields of a response that refuses a request."""
    return {} if reason is None else {REASON_FIELD: reason.value}


def refusal_reason(response: RemotingCommand) -> RefusalReason | None:
    """The reason in the response; None if it has none, or one that this version doesn't have."""
    reason = _REASONS.get(response.ext_fields.get(REASON_FIELD, ""))
    return reason if reason is not None else reason_of(response.code, response.remark or "")


def broker_error(response: RemotingCommand, address: str) -> BrokerError:
    """The error for a response of the server at `address`, host:port, that is no success."""
    return BrokerError(response.code, response.remark, address, refusal_reason(response))
