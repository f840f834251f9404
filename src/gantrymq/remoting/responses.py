"""Encodes responses and converts a handler's errors to responses."""

from __future__ import annotations

from gantrymq.errors import GantryError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.refusals import reason_fields

log = peer_log(__name__)

#: A larger body is passed to the kernel as a separate buffer, so that it is not copied into the frame. Bytes.
LARGE_BODY = 64 * 1024
#: Longer error remarks are cut, because they may quote the peer's input. Characters.
_LONGEST_REMARK = 2000


def reply_buffers(request: RemotingCommand, reply: RemotingCommand) -> tuple[bytes, ...]:
    """Returns the frame of `reply` as buffers. A large body is a separate buffer. Raises ProtocolError."""
    _address(request, reply)
    if len(reply.body) <= LARGE_BODY:
        return (reply.encode(),)
    return reply.encode_head(len(reply.body)), reply.body


def encode_reply(request: RemotingCommand, reply: RemotingCommand) -> bytes:
    """Returns the frame of `reply`, in the header encoding of `request`. Raises ProtocolError if encoding fails."""
    _address(request, reply)
    return reply.encode()


def _address(request: RemotingCommand, reply: RemotingCommand) -> None:
    if reply.serialize_type != request.serialize_type:
        _ = reply.ext_fields  # Decodes the fields of a forwarded response before its encoding changes.
        reply.serialize_type = request.serialize_type
    reply.opaque = request.opaque
    reply.flag |= RESPONSE_FLAG


def error_response(error: Exception, request: RemotingCommand, address: str) -> RemotingCommand:
    """Returns the error response for an exception of a handler.

    A RequestRefused keeps its code and remark. It is logged for one-way requests only, because their sender gets no
    response. Every other exception becomes SYSTEM_ERROR with its text and is always logged.
    """
    if isinstance(error, RequestRefused):
        if request.is_oneway:
            log.warning("one-way request %d of %s is dropped: %s", request.code, address, error)
        return RemotingCommand.response(
            error.code, _remark(str(error)), fields=reason_fields(error.reason, error.retry_after_ms)
        )
    if isinstance(error, GantryError):
        log.warning("request %d of %s failed: %s", request.code, address, error)
    else:
        log.error("request %d of %s failed", request.code, address, exc_info=error)
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, _remark(f"{type(error).__name__}: {error}"))


def _remark(text: str) -> str:
    """Returns `text` without lone surrogates, which no header can encode, and cut to the longest remark."""
    return text[:_LONGEST_REMARK].encode(errors="backslashreplace").decode()
