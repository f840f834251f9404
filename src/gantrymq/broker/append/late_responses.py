"""Responses that are sent after a condition is met or its timeout ends. `pending_responses` defines the conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.private_fields import UNCONFIRMED_FIELD
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.responses import encode_reply, error_response
from gantrymq.store.message_writer import Sent
from gantrymq.system.clock import monotonic

#: Default of `DefaultMQProducer.sendMsgTimeout`, in ms.
_DEFAULT_TIMEOUT_MS = 3000
#: Rounding keeps this number of leading bits of a duration.
_EXACT_BITS = 5


def answer_within_ms(timeout_ms: int | None) -> int:
    """Returns the longest wait of a response to a send, in ms, so that it arrives before the client's timeout.

    This is two thirds of the timeout, rounded down by at most 6 %. Rounding limits the number of different durations,
    each of which has its own wait queue.

    Args:
        timeout_ms: The timeout in the request (`TIMEOUT_FIELD`); None for Java's default, 3000 ms.
    """
    if timeout_ms is None:
        return _DEFAULT_TIMEOUT_MS * 2 // 3
    within_ms = timeout_ms * 2 // 3
    return within_ms & -(1 << max(within_ms.bit_length() - _EXACT_BITS, 0))


class Waiting:
    """A pending response, or several that are sent together.

    Attributes:
        missing: The conditions that are not met yet, as bits.
        code: Code of the response: SUCCESS, or the timeout that occurred.
        is_unconfirmed: Not all replicas in sync have confirmed the message. A field of the response reports this.
        count: Number of responses.
    """

    __slots__ = ("code", "count", "is_unconfirmed", "missing")

    def __init__(self, count: int = 1) -> None:
        self.missing = 0
        self.code = ResponseCode.SUCCESS
        self.is_unconfirmed = False
        self.count = count

    def give(self, error: Exception | None) -> None:
        """Sends the response. If `error` is set, sends it instead."""
        raise NotImplementedError


class Answer(Waiting):
    """The response to one request. After a timeout whose code is in `late_codes`, the response has this code."""

    __slots__ = ("connection", "late_codes", "reply", "request")

    def __init__(
        self,
        connection: Connection,
        request: RemotingCommand,
        reply: RemotingCommand | tuple[bytes],
        late_codes: Collection[ResponseCode],
    ) -> None:
        super().__init__()
        self.connection = connection
        self.request = request
        self.reply = reply
        self.late_codes = late_codes

    def give(self, error: Exception | None) -> None:
        connection, request, reply = self.connection, self.request, self.reply
        if error is not None:
            reply = error_response(error, request, connection.address)
        elif self.code != ResponseCode.SUCCESS and not isinstance(reply, RemotingCommand):
            [reply] = FrameReader().feed(reply[0])
        if isinstance(reply, RemotingCommand):
            if error is None and self.code in self.late_codes:
                reply.code = self.code
            if self.is_unconfirmed:
                reply.ext_fields[UNCONFIRMED_FIELD] = "true"
            connection.reply(request, reply)
        elif not request.is_oneway:
            connection.gather_answer(request, *reply)


class Answers(Waiting):
    """The encoded responses to the requests that native code handled in one call."""

    __slots__ = ("answers", "began", "connection", "requests")

    def __init__(self, connection: Connection, sent: Sent) -> None:
        super().__init__(sent.number)
        self.connection = connection
        self.answers = sent.answers
        #: Request code -> number of requests.
        self.requests = sent.requests
        self.began = connection.command_began

    def give(self, error: Exception | None) -> None:
        code: int = self.code
        if error is not None:
            address = self.connection.address
            code = error.code if isinstance(error, RequestRefused) else ResponseCode.SYSTEM_ERROR
            self._change(lambda answer: encode_reply(answer, self._marked(error_response(error, answer, address))))
        elif code != ResponseCode.SUCCESS:
            self._change(self._with_code)
        latencies = self.connection.latencies
        if latencies is not None:
            seconds = monotonic() - self.began
            for request, count in self.requests:
                latencies.observe(request, code, seconds, is_late=True, count=count)
        self.connection.gather_answers(self.answers)

    def _change(self, change: Callable[[RemotingCommand], bytes]) -> None:
        """Decodes the responses, applies `change` to each, and encodes them again."""
        self.answers = b"".join(map(change, FrameReader().feed(self.answers)))

    def _with_code(self, answer: RemotingCommand) -> bytes:
        answer.code = self.code
        return self._marked(answer).encode()

    def _marked(self, answer: RemotingCommand) -> RemotingCommand:
        if self.is_unconfirmed:
            answer.ext_fields[UNCONFIRMED_FIELD] = "true"
        return answer


class Caller(Waiting):
    """A coroutine that awaits `done`, in place of a response."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        super().__init__()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
