"""SendAttempt: one request of a send, from `DirectSends.begin` to its response."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.latency_fault import FaultItem
from gantrymq.client.producing.message_encoder import EncodedMessage
from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.kernels import native
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import UNIQUE_KEY_PAIR
from gantrymq.protocol.send_response import decode_send_response, decode_trace
from gantrymq.remoting.connection import Connection, FirstLook
from gantrymq.remoting.pending_requests import Waiting

_SUCCESS = int(ResponseCode.SUCCESS)
#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__


class Outcome(Protocol):
    """Receives what an attempt ended with: an asyncio future, or an object that needs no event-loop iteration."""

    def done(self) -> bool: ...
    def set_result(self, result: SendResult | RemotingCommand, /) -> None: ...
    def set_exception(self, exception: Exception, /) -> None: ...
    def result(self) -> SendResult | RemotingCommand: ...


class SendAttempt(NamedTuple):
    """The first attempt of a send. Receives the response while its read is handled (`pending_requests.Waiting`).

    Attributes:
        outcome: Gets a SendResult if the response has the usual form, any other response as it is, or an error.
        msg_id: Id of the message.
        body: Body of the message.
        properties: Its encoded properties. Empty if it has only its id.
        queue: Queue of the request.
        connection: Connection to the master of the queue.
        opaque: Opaque number of the request.
        info: Queues of the topic.
        fault: State of the broker; None without `send_latency_fault_enable`.
        began: Start of the send, in seconds of the monotonic clock.
        timeout_ms: Timeout of the attempt.
        send_timeout_ms: Timeout of all attempts together.
    """

    outcome: Outcome
    msg_id: str
    body: bytes
    properties: bytes
    queue: MessageQueue
    connection: Connection
    opaque: int
    info: TopicPublishInfo
    fault: FaultItem | None
    began: float
    timeout_ms: int
    send_timeout_ms: int

    @property
    def encoded(self) -> EncodedMessage:
        """The message of the request."""
        properties = self.properties or UNIQUE_KEY_PAIR % self.msg_id.encode()
        return EncodedMessage(self.queue.topic, self.body, properties, 0, 0, False, self.msg_id)

    def done(self) -> bool:
        return self.outcome.done()

    def set_result(self, response: RemotingCommand, /) -> None:
        answer = decode_send_response(response, self.queue.queue_id) if response.code == _SUCCESS else None
        self.outcome.set_result(response if answer is None else self.result(answer))

    def set_exception(self, exception: Exception, /) -> None:
        self.outcome.set_exception(exception)

    def result(self, answer: tuple[str, int, str | None, str, bool]) -> SendResult:
        """Returns the result of a send with this response."""
        offset_msg_id, queue_offset, transaction_id, region_id, trace_on = answer
        status, msg_id, queue = SendStatus.SEND_OK, self.msg_id, self.queue
        return _new(
            SendResult,
            (status, msg_id, queue, queue_offset, offset_msg_id, transaction_id, None, region_id, trace_on, None),
        )


class Pending(Protocol):
    """The pending requests of a connection."""

    def find(self, opaque: int) -> Waiting | None: ...
    def discard(self, opaque: int) -> None: ...


def first_look() -> FirstLook | None:
    """Returns the function that handles responses to attempts before they are decoded, if native code is installed."""
    return _first_look if native is not None else None


def _first_look(connection: Connection, data: bytes) -> tuple[int, bytes]:
    return take_responses(connection.pending, data), b""


def take_responses(pending: Pending, data: bytes) -> int:
    """Ends the attempts with the responses at the start of `data`. Returns their length; 0 without native code."""
    if native is None:
        return 0
    handled = 0
    for opaque, queue_id, queue_offset, offset_msg_id, transaction_id, tail, end in native.send_responses(data):
        attempt, trace = pending.find(opaque), decode_trace(tail)
        if type(attempt) is not SendAttempt or attempt.queue.queue_id != queue_id or trace is None:
            # The connection decodes this response and the rest of the read.
            break
        pending.discard(opaque)
        if not attempt.outcome.done():
            attempt.outcome.set_result(attempt.result((offset_msg_id, queue_offset, transaction_id, *trace)))
        handled = end
    return handled
