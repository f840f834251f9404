"""Finds the broker and the topic of a request in its fields and its body.

Clients of version 5.0 and later name the broker in each request (`AbstractRemotingActivity.request`). Older clients do
so only in some requests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.errors import BodyError, HeaderError
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.receipt_handle import ReceiptHandle

#: Requests whose field names have one letter.
_SHORT = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
_LOCKS = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)


class _Queue(msgspec.Struct, rename="camel"):
    broker_name: str = ""


class _Queues(msgspec.Struct, rename="camel"):
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. All queues belong to one broker."""

    mq_set: list[_Queue] = []


class _Acks(msgspec.Struct, rename="camel"):
    """The body of BATCH_ACK_MESSAGE."""

    broker_name: str = ""


def broker_of(request: RemotingCommand) -> str:
    """Returns the broker's name, or an empty string if the request does not name a broker.

    Raises HeaderError for an invalid receipt handle, and BodyError for an invalid body.
    """
    fields = request.ext_fields
    name = fields.get("n" if request.code in _SHORT else "bname")
    if name:
        return name
    if request.code in _LOCKS:
        queues = _body(request, _Queues).mq_set
        return queues[0].broker_name if queues else ""
    if request.code == RequestCode.BATCH_ACK_MESSAGE:
        return str(_body(request, _Acks).broker_name)
    if handle := fields.get("extraInfo"):
        try:
            return ReceiptHandle.parse(handle).broker_name
        except BodyError as e:
            raise HeaderError(f"extraInfo: {e}") from e
    return ""


def topic_of(request: RemotingCommand) -> str:
    """Returns the topic of a request, or the original topic of its message. Empty for a request without a topic."""
    fields = request.ext_fields
    if request.code in _SHORT:
        return fields.get("b", "")
    return fields.get("topic") or fields.get("originTopic", "")


def _body(request: RemotingCommand, kind: Any) -> Any:
    return decode_json(request.body, kind)
