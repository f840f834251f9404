"""Answers that are given when something has happened, or hasn't in time; what they wait for is `flush_waits`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.private_fields import UNCONFIRMED_FIELD
from gantrymq.remoting.answers import encode_reply, error_response
from gantrymq.remoting.connection import Connection

#: `DefaultMQProducer.sendMsgTimeout`, unless it is set.
_DEFAULT_TIMEOUT_MS = 3000
#: So many bits of a duration count.
_EXACT_BITS = 5


def answer_within_ms(timeout_ms: int | None) -> int:
    """How long the answer to a send waits at most, in ms, so that it arrives before the client's timeout.

    It is two thirds of that timeout. What a client gave is rounded down by at most 6 %: so there are few different
    durations, each of which has a wait queue.

    Args:
        timeout_ms: The timeout in the request (`TIMEOUT_FIELD`); None for Java's default, 3000 ms.
    """
    if timeout_ms is None:
        return _DEFAULT_TIMEOUT_MS * 2 // 3
    within_ms = timeout_ms * 2 // 3
    return within_ms & -(1 << max(within_ms.bit_length() - _EXACT_BITS, 0))


class Waiting:
    """Who waits, and for what; `code` is what the answer is to say beside SUCCESS, `count` how many answers it is.

    If `is_unconfirmed`, the in-sync set of a controller has not confirmed the message: the answer says so in a field.
    """

    __slots__ = ("code", "count", "is_unconfirmed", "missing")

    def __init__(self, count: int = 1) -> None:
        self.missing = 0
        self.code = ResponseCode.SUCCESS
        self.is_unconfirmed = False
        self.count = count

    def give(self, error: Exception | None) -> None:
        """It waits no more."""
        raise NotImplementedError


class Answer(Waiting):
    """An answer to a request; it says what hasn't happened in time if that is one of the codes `told`."""

    __slots__ = ("connection", "reply", "request", "told")

    def __init__(
        self,
        connection: Connection,
        request: RemotingCommand,
        reply: RemotingCommand | tuple[bytes],
        told: Collection[ResponseCode],
    ) -> None:
        super().__init__()
        self.connection = connection
        self.request = request
        self.reply = reply
        self.told = told

    def give(self, error: Exception | None) -> None:
        connection, request, reply = self.connection, self.request, self.reply
        if error is not None:
            reply = error_response(error, request, connection.address)
        elif self.code != ResponseCode.SUCCESS and not isinstance(reply, RemotingCommand):
            [reply] = FrameReader().feed(reply[0])
        if isinstance(reply, RemotingCommand):
            if error is None and self.code in self.told:
                reply.code = self.code
            if self.is_unconfirmed:
                reply.ext_fields[UNCONFIRMED_FIELD] = "true"
            connection.reply(request, reply)
        elif not request.is_oneway:
            connection.gather_answers(*reply)


class Answers(Waiting):
    """Those to the requests that native code has dealt with in one call, encoded."""

    __slots__ = ("answers", "connection")

    def __init__(self, connection: Connection, answers: bytes, count: int) -> None:
        super().__init__(count)
        self.connection = connection
        self.answers = answers

    def give(self, error: Exception | None) -> None:
        if error is not None:
            address = self.connection.address
            self._change(lambda answer: encode_reply(answer, self._marked(error_response(error, answer, address))))
        elif self.code != ResponseCode.SUCCESS:
            self._change(self._with_code)
        self.connection.gather_answers(self.answers)

    def _change(self, change: Callable[[RemotingCommand], bytes]) -> None:
        self.answers = b"".join(map(change, FrameReader().feed(self.answers)))

    def _with_code(self, answer: RemotingCommand) -> bytes:
        answer.code = self.code
        return self._marked(answer).encode()

    def _marked(self, answer: RemotingCommand) -> RemotingCommand:
        if self.is_unconfirmed:
            answer.ext_fields[UNCONFIRMED_FIELD] = "true"
        return answer


class Caller(Waiting):
    """One who awaits it."""

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
