"""Errors of a failed send distinguish between a message that may be stored and one that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from scripted_producer import ProducerBroker, producer_over, scripted_cluster
from wait_until import until

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    GantryError,
    HeaderError,
    RefusalReason,
    RequestTimeout,
    SendOutcomeUnknown,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.remoting.connection import Connection

MESSAGE = Message("topic", b"body")


class Unreliable(ProducerBroker):
    """Stores messages, and responds in turn with the `answers`, then correctly."""

    def __init__(self, *answers: Callable[[Connection], RemotingCommand | None]) -> None:
        super().__init__()
        self.answers = list(answers)

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        answer = super()._send(connection, request)
        return self.answers.pop(0)(connection) if self.answers else answer


def drop(connection: Connection) -> None:
    """Closes the connection."""
    connection.abort()


def keep_silent(connection: Connection) -> None:
    """Sends no response."""


def damaged(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(fields={"msgId": "0" * 32, "queueId": "many", "queueOffset": "0"})


def empty(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response()


def may_be_stored(connection: Connection) -> RemotingCommand:
    fields = {REASON_FIELD: RefusalReason.MAY_BE_STORED.value}
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "as scripted", fields=fields)


def refuse(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "as scripted")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(drop, ConnectionLost), (keep_silent, RequestTimeout), (damaged, HeaderError), (empty, HeaderError)],
)
async def test_no_answer_that_can_be_read_means_perhaps(
    answer: Callable[[Connection], RemotingCommand | None], cause: type[GantryError]
) -> None:
    """A damaged response also means that the outcome is unknown."""
    broker = Unreliable(*[answer] * 3)
    async with producer_over(broker) as producer:
        with pytest.raises(SendOutcomeUnknown, match="may be stored on broker") as failed:
            # Only silence takes the whole timeout.
            await producer.send(MESSAGE, timeout=(500 if answer is keep_silent else 20_000) / 1000)
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
    """A last attempt without time would hide the cause: its error is "did not answer in 1 ms"."""
    broker = Unreliable(*[keep_silent] * 3)
    async with producer_over(broker, try_timeout=0.995) as producer:
        with pytest.raises(SendOutcomeUnknown, match=r"did not answer in \d{3} ms"):
            await producer.send(MESSAGE, timeout=1)
    assert len(broker.sent) == 1


UNCONFIRMED = {"gantryUnconfirmed": "true"}


def unconfirmed_broker() -> ProducerBroker:
    """Returns a controller's master whose in-sync set does not confirm messages."""
    broker = ProducerBroker(answer=ResponseCode.FLUSH_SLAVE_TIMEOUT)
    broker.more = UNCONFIRMED
    return broker


async def test_a_send_that_the_in_sync_set_has_not_confirmed_raises() -> None:
    """Such messages are lost if another broker becomes master."""
    broker = unconfirmed_broker()
    async with producer_over(broker) as producer:
        for send in (
            producer.send(MESSAGE),
            producer.send(MESSAGE, queue=MessageQueue("topic", "broker", 0)),
            producer.send_batch([MESSAGE, MESSAGE]),
            producer.send(MESSAGE, select=select_by_hash("key")),
        ):
            with pytest.raises(SendOutcomeUnknown, match="in-sync replicas have not confirmed it") as raised:
                await send
            assert raised.value.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert raised.value.address == broker.address
        with pytest.raises(SendOutcomeUnknown):
            await producer.request(MESSAGE)
    # The master has stored them, so each was sent once.
    assert len(broker.sent) == 5


async def test_each_message_of_an_unconfirmed_batch_gets_the_status() -> None:
    broker = unconfirmed_broker()
    async with producer_over(broker, linger=0.005) as producer:
        futures = [await producer.enqueue(MESSAGE) for _ in range(3)]
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [error.status for error in errors if isinstance(error, SendOutcomeUnknown)] == [
        SendStatus.FLUSH_SLAVE_TIMEOUT
    ] * 3


async def test_an_unconfirmed_send_is_repeated_on_request() -> None:
    broker = unconfirmed_broker()
    async with producer_over(broker, retry_when_not_stored_safely=True) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(MESSAGE)
    assert len(broker.sent) == 3


async def test_a_repeated_send_that_is_confirmed_returns() -> None:
    def not_confirmed(connection: Connection) -> RemotingCommand:
        header = SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=1)
        return RemotingCommand.response(ResponseCode.FLUSH_SLAVE_TIMEOUT, "late", header, fields=UNCONFIRMED)

    broker = Unreliable(not_confirmed)
    async with producer_over(broker, retry_when_not_stored_safely=True) as producer:
        assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
    assert len(broker.sent) == 2


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT])
async def test_without_a_controller_a_send_returns_with_its_status(code: ResponseCode) -> None:
    broker = ProducerBroker(answer=code)
    async with producer_over(broker) as producer:
        assert (await producer.send(MESSAGE)).status.value == code
    assert len(broker.sent) == 1


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        raise AssertionError("the half message is not safe")

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


async def test_an_unconfirmed_half_message_is_rolled_back() -> None:
    broker = unconfirmed_broker()
    async with (
        scripted_cluster(broker) as address,
        TransactionProducer(address, "producers", Listener()) as producer,
    ):
        with pytest.raises(SendOutcomeUnknown):
            await producer.send_in_transaction(MESSAGE)
        await until(lambda: broker.ends)
    [(end, _)] = broker.ends
    assert end.commit_or_rollback == LocalTransactionState.ROLLBACK_MESSAGE.value


async def test_a_message_that_a_former_master_has_stored_may_be_stored() -> None:
    """It must not be a BrokerError, which means that the message is not stored."""
    broker = ProducerBroker()
    broker.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, RefusalReason.MAY_BE_STORED)
    async with producer_over(broker) as producer:
        with pytest.raises(SendOutcomeUnknown) as raised:
            await producer.send(MESSAGE, timeout=0.3)
    assert raised.value.status is None


@pytest.mark.parametrize("to_one_queue", [False, True])
@pytest.mark.parametrize("retry_times", [0, 2])
async def test_a_message_that_may_be_stored_is_sent_again_retry_times(retry_times: int, to_one_queue: bool) -> None:
    broker = ProducerBroker()
    broker.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, RefusalReason.MAY_BE_STORED)
    async with producer_over(broker, retry_times=retry_times) as producer:
        queue = (await producer.queues("topic"))[0] if to_one_queue else None
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(MESSAGE, timeout=20, queue=queue)
    assert len(broker.sent) == 1 + retry_times


@pytest.mark.parametrize("to_one_queue", [False, True])
async def test_a_later_refusal_does_not_hide_that_the_message_may_be_stored(to_one_queue: bool) -> None:
    broker = Unreliable(may_be_stored, refuse)
    async with producer_over(broker) as producer:
        queue = (await producer.queues("topic"))[0] if to_one_queue else None
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(MESSAGE, timeout=20, queue=queue)
    assert len(broker.sent) == 2


async def test_a_message_that_was_refused_is_sent_again_without_retries() -> None:
    """The rejection means that another broker is master, so the message is not stored."""
    broker = ProducerBroker()
    broker.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, RefusalReason.NOT_MASTER)
    async with producer_over(broker, retry_times=0) as producer:
        sending = asyncio.ensure_future(producer.send(MESSAGE, timeout=20))
        await until(lambda: len(broker.sent) > 1)
        broker.accept()
        await sending
