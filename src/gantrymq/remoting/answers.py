"""Answers: how they are encoded for the request that they answer, and what errors become."""

from __future__ import annotations

from gantrymq.errors import GantryError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.refusals import reason_fields

log = peer_log(__name__)

#: Larger bodies are handed to the kernel apart, without a copy into the frame.
LARGE_BODY = 64 * 1024
#: Longer remarks of errors are cut: they may quote what the peer sent.
_LONGEST_REMARK = 2000


def reply_buffers(request: RemotingCommand, reply: RemotingCommand) -> tuple[bytes, ...]:
    """The frame of `reply` in buffers. A large body is a buffer of its own and isn't copied. Raises ProtocolError."""
    _address(request, reply)
    if len(reply.body) <= LARGE_BODY:
        return (reply.encode(),)
    return reply.encode_head(len(reply.body)), reply.body


def encode_reply(request: RemotingCommand, reply: RemotingCommand) -> bytes:
    """The frame of `reply`, in the header encoding of `request`. Raises ProtocolError for what it can't carry."""
    _address(request, reply)
    return reply.encode()


def _address(request: RemotingCommand, reply: RemotingCommand) -> None:
    if reply.serialize_type != request.serialize_type:
        _ = reply.ext_fields  # Those of a command that another server sent are still in its encoding.
        reply.serialize_type = request.serialize_type
    reply.opaque = request.opaque
    reply.flag |= RESPONSE_FLAG


def error_response(error: Exception, request: RemotingCommand, address: str) -> RemotingCommand:
    """The answer for a handler that raised: a RequestRefused's code and remark, else SYSTEM_ERROR and the reason.

    A refusal is an everyday answer, but that of a one-way request, of which nobody is told; anything else is logged.
    """
    if isinstance(error, RequestRefused):
        if request.is_oneway:
            log.warning("one-way request %d of %s is dropped: %s", request.code, address, error)
        return RemotingCommand.response(error.code, _remark(str(error)), fields=reason_fields(error.reason))
    if isinstance(error, GantryError):
        log.warning("request %d of %s failed: %s", request.code, address, error)
    else:
        log.error("request %d of %s failed", request.code, address, exc_info=error)
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, _remark(f"{type(error).__name__}: {error}"))


def _remark(text: str) -> str:
    """`text` as any header can carry it."""
    return text[:_LONGEST_REMARK].encode(errors="backslashreplace").decode()
