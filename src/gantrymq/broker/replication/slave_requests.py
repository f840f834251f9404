"""Responses of a slave to requests that only a master can handle. The responses have Java's remarks if Java sends any.

A slave's log and tables are copies of its master's. If a slave stored a message or created a topic, the change would be
lost, or the copies would differ. Sources: SendMessageProcessor.rejectRequest, EndTransactionProcessor,
RecallMessageProcessor, AdminBrokerProcessor.validateSlave and resetOffsetInner.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.refusals import reason_fields
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

_CODE = RequestCode
_BUSY = ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave"
_TABLES = (
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
#: An acting master accepts pops. A Java slave always accepts them. It can't record messages as in flight, so it returns
#: the same messages again.
_POPS = ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: pops are for the master, this broker is a slave"
_LITE_TOPICS = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now: lite topics are for the master, this broker is a slave",
)

_REFUSALS: dict[tuple[int, str | None], tuple[int, ...]] = {
    _BUSY: (
        _CODE.SEND_MESSAGE,
        _CODE.SEND_MESSAGE_V2,
        _CODE.SEND_BATCH_MESSAGE,
        _CODE.SEND_REPLY_MESSAGE,
        _CODE.SEND_REPLY_MESSAGE_V2,
        _CODE.CONSUMER_SEND_MSG_BACK,
        _CODE.RESUME_CHECK_HALF_MESSAGE,
    ),
    (ResponseCode.SLAVE_NOT_AVAILABLE, None): (_CODE.END_TRANSACTION,),
    (ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available"): (_CODE.RECALL_MESSAGE,),
    (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker"): (
        _CODE.INVOKE_BROKER_TO_RESET_OFFSET,
        _CODE.CLONE_GROUP_OFFSET,
    ),
    _TABLES: (
        _CODE.UPDATE_AND_CREATE_TOPIC,
        _CODE.UPDATE_AND_CREATE_TOPIC_LIST,
        _CODE.DELETE_TOPIC_IN_BROKER,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        _CODE.DELETE_SUBSCRIPTIONGROUP,
        _CODE.SET_MESSAGE_REQUEST_MODE,
        _CODE.CLEAN_UNUSED_TOPIC,
    ),
    _LITE_TOPICS: (
        _CODE.POP_LITE_MESSAGE,
        _CODE.LITE_SUBSCRIPTION_CTL,
        _CODE.TRIGGER_LITE_DISPATCH,
    ),
    _POPS: (
        _CODE.POP_MESSAGE,
        _CODE.PEEK_MESSAGE,
        _CODE.NOTIFICATION,
        _CODE.POLLING_INFO,
        _CODE.ACK_MESSAGE,
        _CODE.BATCH_ACK_MESSAGE,
        _CODE.CHANGE_MESSAGE_INVISIBLETIME,
    ),
}
_DOUBTED = ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: another broker may be master"
#: The requests that a slave handles only while it is the acting master.
STAND_IN_CODES = _REFUSALS[_POPS]


def as_slave(handlers: Mapping[int, RequestHandler], config: BrokerConfig) -> dict[int, RequestHandler]:
    """Returns the request handlers of a slave, by request code. `handlers` are those of a master."""
    refusals: dict[int, RequestHandler] = {
        code: partial(_refuse, response_code, remark)
        for (response_code, remark), codes in _REFUSALS.items()
        for code in codes
    }
    pulls: dict[int, RequestHandler] = {
        code: _if_readable(handlers[code], config) for code in (_CODE.PULL_MESSAGE, _CODE.LITE_PULL_MESSAGE)
    }
    return {**handlers, **refusals, **pulls}


def as_doubted_master() -> dict[int, RequestHandler]:
    """Returns the handlers of a master that may be deposed. They refuse pops, because it can't store checkpoints."""
    return {
        code: partial(_refuse, *_DOUBTED) for code in (_CODE.POP_MESSAGE, _CODE.NOTIFICATION, _CODE.POP_LITE_MESSAGE)
    }


def slave_refusal() -> RequestRefused:
    """Returns the error for work that started on a master and can't complete, because this broker is a slave now."""
    return RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave", RefusalReason.NOT_MASTER)


def _refuse(code: int, remark: str | None, connection: Connection, request: RemotingCommand) -> Reply:
    reason = RefusalReason.NOT_MASTER if (code, remark) in (_BUSY, _POPS, _LITE_TOPICS, _DOUBTED) else None
    return RemotingCommand.response(code, remark, fields=reason_fields(reason))


def _if_readable(handler: RequestHandler, config: BrokerConfig) -> RequestHandler:
    """Refuses pulls without `slaveReadEnable` (`PullMessageProcessor.rejectRequest`). Clients then use the master."""

    def handle(connection: Connection, request: RemotingCommand) -> Reply:
        if not config.slave_read_enable:
            raise RequestRefused(_BUSY[0], f"{_BUSY[1]}, slaveReadEnable is false", RefusalReason.NOT_MASTER)
        return handler(connection, request)

    return handle
