"""Replies whose asker has gone: the question is done, and isn't to be asked again."""

from __future__ import annotations

from gantrymq.errors import BrokerError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt

log = peer_log(__name__)

#: How a broker begins its remark when it couldn't push a reply on (`ReplyMessageProcessor.pushReplyMessage`).
_REMARK = "push reply message"


def without_lost_reply(error: BaseException, message: MessageExt) -> BaseException | None:
    """None for the error of a reply that nobody takes any more, which is logged; any other error as it is."""
    if not isinstance(error, BrokerError) or error.code != ResponseCode.SYSTEM_ERROR:
        return error
    if not error.remark.startswith(_REMARK):
        return error
    log.warning("the reply to %s has nobody to go to any more: %s", message.msg_id, error)
    return None
