"""Conversion of errors to statuses for clients (`ResponseBuilder`, `GrpcProxyException`).

If an rpc fails, its response has a Status with a `Code`, and the gRPC status stays OK. Only calls that do not reach a
handler, or cannot send a response, end with another gRPC status.
"""

from __future__ import annotations

from enum import IntEnum

from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, RequestTimeout, SendOutcomeUnknown
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.proxy.v2.definition_pb2 import Code, Status

log = peer_log(__name__)

#: Codes for clients by a broker's response code. All others become INTERNAL_SERVER_ERROR.
_CODES: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    # Both errors are faults of the client. Java's proxy never reports the first one as such.
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class GrpcCode(IntEnum):
    """The gRPC status codes that the proxy uses."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class ProxyError(GantryError):
    """Raised by a handler: the response contains a Status with this code and message."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class GrpcError(GantryError):
    """Raised by a handler: the call ends with this gRPC status and without a response."""

    def __init__(self, code: GrpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def status(code: Code, message: str | None = None) -> Status:
    """Returns a status. Its default message is the name of the code."""
    return Status(code=code, message=Code.Name(code) if message is None else message)


def status_of(error: Exception) -> Status:
    """Returns the status for an error. Unexpected errors are logged with a traceback."""
    if isinstance(error, ProxyError):
        return status(error.code, str(error))
    if isinstance(error, NoRouteInfo):
        remark = f"No topic route info in name server for the topic: {error.topic}"
        return broker_status(ResponseCode.TOPIC_NOT_EXIST, remark)
    if isinstance(error, BrokerError):
        return broker_status(error.code, error.remark)
    if isinstance(error, RequestTimeout) or isinstance(getattr(error, "__cause__", None), RequestTimeout):
        return status(Code.PROXY_TIMEOUT, str(error))
    if isinstance(error, GantryError | SendOutcomeUnknown):
        log.warning("a request failed: %s: %s", type(error).__name__, error)
    else:
        log.error("a request failed: %s: %s", type(error).__name__, error, exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, str(error) or type(error).__name__)


def broker_status(code: int, remark: str | None) -> Status:
    """Returns the status for an error response of a broker."""
    if code == ResponseCode.TOPIC_NOT_EXIST:
        # For this error only, Java's proxy sends the text together with the code (`ResponseBuilder.buildStatus`).
        remark = f"CODE: {code}  DESC: {remark or ''}"
    return status(_CODES.get(code, Code.INTERNAL_SERVER_ERROR), str(code) if remark is None else remark)
