"""Encodes the reason for a refused request in a response, and creates the client's error for it."""

from __future__ import annotations

from gantrymq.errors import BrokerError, LiteSubscriptionQuotaExceeded, LiteTopicQuotaExceeded, RefusalReason
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java_remarks import reason_of
from gantrymq.protocol.private_fields import REASON_FIELD, RETRY_AFTER_FIELD

_REASONS = {reason.value: reason for reason in RefusalReason}

#: Codes for which clients raise a subclass of BrokerError.
_ERRORS: dict[int, type[BrokerError]] = {
    ResponseCode.LMQ_QUOTA_EXCEEDED: LiteTopicQuotaExceeded,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: LiteSubscriptionQuotaExceeded,
}
#: A longer time to wait is illegal: 10 digits are 115 days.
_MAX_DIGITS = 10


def reason_fields(reason: RefusalReason | None, retry_after_ms: int | None = None) -> dict[str, str]:
    """Returns the header fields of a response with this reason and this time to wait."""
    fields = {} if reason is None else {REASON_FIELD: reason.value}
    if retry_after_ms is not None:
        fields[RETRY_AFTER_FIELD] = str(retry_after_ms)
    return fields


def refusal_reason(response: RemotingCommand) -> RefusalReason | None:
    """Returns the reason in a response; None without a reason, and for a reason that this version does not define."""
    reason = _REASONS.get(response.ext_fields.get(REASON_FIELD, ""))
    return reason if reason is not None else reason_of(response.code, response.remark or "")


def broker_error(response: RemotingCommand, address: str) -> BrokerError:
    """Returns the error for an unsuccessful response of the server at `address`, HOST:PORT."""
    reason = refusal_reason(response)
    kind = _ERRORS.get(response.code, BrokerError)
    return kind(response.code, response.remark, address, reason, retry_after_ms=retry_after_ms(response))


def retry_after_ms(response: RemotingCommand) -> int | None:
    """Returns the positive time to wait in a response; None if it has none, or an illegal one."""
    text = response.ext_fields.get(RETRY_AFTER_FIELD, "")
    return int(text) or None if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS else None
