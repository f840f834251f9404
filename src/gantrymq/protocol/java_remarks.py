"""Remarks of Java's servers that a client must check, because responses with the same code have different reasons.

GantryMQ's servers send a `RefusalReason` instead (`private_fields.REASON_FIELD`).
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.errors import RefusalReason
from gantrymq.protocol.codes import ResponseCode


class JavaRemark(NamedTuple):
    """A response of Java's servers: its code, the text in its remark, and its source."""

    code: ResponseCode
    text: str
    reason: RefusalReason
    source: str


REMARKS = (
    JavaRemark(
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough",
        RefusalReason.NOT_ENOUGH_REPLICAS,
        "SendMessageProcessor.handlePutMessageResult",
    ),
    JavaRemark(
        ResponseCode.SYSTEM_ERROR,
        "name server not ready",
        RefusalReason.NAME_SERVER_NOT_READY,
        "ClientRequestProcessor.getRouteInfoByTopic",
    ),
    JavaRemark(
        ResponseCode.SYSTEM_ERROR,
        "push reply message",
        RefusalReason.REQUESTER_GONE,
        "ReplyMessageProcessor.pushReplyMessage",
    ),
    JavaRemark(
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "MESSAGE_WAS_REMOVING",
        RefusalReason.MESSAGES_REMOVED,
        "PullMessageProcessor.composeResponseHeader",
    ),
    JavaRemark(
        ResponseCode.NO_PERMISSION,
        "username cannot be null",
        RefusalReason.NO_CREDENTIALS,
        "DefaultAuthenticationHandler.getUser",
    ),
    JavaRemark(
        ResponseCode.NO_PERMISSION,
        "No accessKey is configured",
        RefusalReason.NO_CREDENTIALS,
        "PlainPermissionManager.validate",
    ),
    JavaRemark(
        ResponseCode.NO_PERMISSION,
        "has no permission to access",
        RefusalReason.NOT_PERMITTED,
        "AclAuthorizationHandler.throwException",
    ),
)


def reason_of(code: int, remark: str) -> RefusalReason | None:
    """Returns the reason for a response of a Java server, or None if no program reacts to it."""
    return next((one.reason for one in REMARKS if one.code == code and one.text in remark), None)
