"""Replies to a disconnected requester. The request counts as consumed and is not redelivered."""

from __future__ import annotations

from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt

log = peer_log(__name__)


def without_lost_reply(error: BaseException, message: MessageExt) -> BaseException | None:
    """Logs the error of a reply to a disconnected requester and returns None; returns any other error."""
    if not isinstance(error, BrokerError) or error.reason is not RefusalReason.REQUESTER_GONE:
        return error
    log.warning("the requester of %s is disconnected, its reply is dropped: %s", message.msg_id, error)
    return None
