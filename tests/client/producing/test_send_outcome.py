"""What a failed send says of the message: stored perhaps, or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_producer import ProducerBroker, producer_over

from gantrymq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    GantryError,
    HeaderError,
    RequestTimeout,
    SendOutcomeUnknown,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.remoting.connection import Connection

MESSAGE = Message("topic", b"body")


class Unreliable(ProducerBroker):
    """Stores what it is sent, and answers as the `answers` say, one after the other; rightly then."""

    def __init__(self, *answers: Callable[[Connection], RemotingCommand | None]) -> None:
        super().__init__()
        self.answers = list(answers)

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        answer = super()._send(connection, request)
        return self.answers.pop(0)(connection) if self.answers else answer


def drop(connection: Connection) -> None:
    """Cuts the connection."""
    connection.abort()


def keep_silent(connection: Connection) -> None:
    """Gives no answer."""


def damaged(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(fields={"msgId": "0" * 32, "queueId": "many", "queueOffset": "0"})


def empty(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response()


def refuse(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "as scripted")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(drop, ConnectionLost), (keep_silent, RequestTimeout), (damaged, HeaderError), (empty, HeaderError)],
)
async def test_no_answer_that_can_be_read_means_perhaps(
    answer: Callable[[Connection], RemotingCommand | None], cause: type[GantryError]
) -> None:
    """A damaged answer was a HeaderError, and the guide's example said of what is stored that it isn't."""
    broker = Unreliable(*[answer] * 3)
    async with producer_over(broker) as producer:
        with pytest.raises(SendOutcomeUnknown, match="may be stored on broker") as failed:
            # Only silence takes that long.
            await producer.send(MESSAGE, 500 if answer is keep_silent else 20_000)
        assert isinstance(failed.value.__cause__, cause)
        assert failed.value.address == broker.address
    assert broker.sent


async def test_what_is_refused_after_that_may_be_stored_still() -> None:
    broker = Unreliable(drop, refuse)
    async with producer_over(broker) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(MESSAGE)
    assert len(broker.sent) == 2


async def test_a_later_try_that_succeeds_is_a_success() -> None:
    broker = Unreliable(damaged, drop)
    async with producer_over(broker) as producer:
        await producer.send(MESSAGE)
    assert len(broker.sent) == 3


async def test_what_never_was_sent_is_not_stored() -> None:
    broker = ProducerBroker()
    async with producer_over(broker) as producer:
        await producer.queues("topic")
        await broker.server.stop()
        with pytest.raises(ConnectFailed):
            await producer.send(MESSAGE)


async def test_what_was_refused_is_not_stored() -> None:
    async with producer_over(Unreliable(refuse)) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)


async def test_no_try_is_begun_when_no_time_is_left() -> None:
    """The error was that of the last: "did not answer in 1 ms"."""
    broker = Unreliable(*[keep_silent] * 3)
    async with producer_over(broker, try_timeout_ms=995) as producer:
        with pytest.raises(SendOutcomeUnknown, match=r"did not answer in \d{3} ms"):
            await producer.send(MESSAGE, 1000)
    assert len(broker.sent) == 1
