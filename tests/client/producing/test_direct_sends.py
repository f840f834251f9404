"""Sends whose first attempt takes the direct path, as all but the first sends of a producer do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from internals import direct_sends
from msgspec.structs import replace
from native_code import BOTH, use_python
from scripted import ScriptedNameServer, route_over, serving
from scripted_producer import AnsweringBroker, keep_silent, producer_over
from wait_until import until

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing import send_attempt, send_command
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import (
    BrokerError,
    ClientClosed,
    ConnectionLost,
    GantryError,
    HeaderError,
    IllegalMessage,
    RefusalReason,
    RequestTimeout,
    SendOutcomeUnknown,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.protocol.private_fields import RETRY_AFTER_FIELD, UNCONFIRMED_FIELD
from gantrymq.remoting.connection import Connection

MESSAGE = Message("topic", b"body")
#: Longer than a loaded machine needs.
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True, params=BOTH)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test with native code and without."""
    if request.param == "python":
        use_python(monkeypatch, send_attempt)
        use_python(monkeypatch, send_command)


@asynccontextmanager
async def connected(*brokers: AnsweringBroker, **options: Any) -> AsyncIterator[Producer]:
    """Yields a producer with a route and open connections, so that its sends are direct."""
    async with producer_over(*brokers, **options) as producer:
        for _ in range(4 * len(brokers)):
            await producer.send(MESSAGE, timeout=TIMEOUT_S)
        await send_directly(producer)
        for broker in brokers:
            broker.sent.clear()
        yield producer


async def send_directly(producer: Producer) -> None:
    future: asyncio.Future[SendResult | RemotingCommand] = asyncio.get_running_loop().create_future()
    attempt = direct_sends(producer).begin(MESSAGE, 60_000, future)
    assert attempt is not None, "this send is not direct"
    assert isinstance(await future, SendResult)
    producer.sender.stored(attempt)


def drop(connection: Connection) -> None:
    """Closes the connection."""
    connection.abort()


def damaged(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(fields={"msgId": "0" * 32, "queueId": "many", "queueOffset": "0"})


def refuse(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "as scripted")


def busy(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "as scripted")


def limited(connection: Connection) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "as scripted", fields={RETRY_AFTER_FIELD: "20"})


def pending(producer: Producer, broker: AnsweringBroker) -> int:
    connection = producer.client.remoting.open_connection(broker.address)
    assert connection is not None
    return len(connection.pending)


async def test_the_result_is_that_of_other_sends() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        direct = await producer.send(Message("topic", b"direct", tags="t", keys="k"), timeout=TIMEOUT_S)
        other = await producer.send(
            Message("topic", b"other", tags="t", keys="k"), queue=direct.queue, timeout=TIMEOUT_S
        )
    assert direct.status is other.status is SendStatus.SEND_OK
    assert direct[5:] == other[5:]
    one, two = broker.sent
    assert (one.code, one.body, two.body) == (two.code, b"direct", b"other")
    assert one.properties == {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": direct.msg_id}
    assert two.properties == {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": other.msg_id}
    assert replace(one.header, born_timestamp=0, properties=None) == replace(
        two.header, born_timestamp=0, properties=None
    )


async def test_requests_have_the_order_of_the_calls() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        # A message with a flag is not direct.
        messages = [Message("topic", b"%d" % n, flag=n % 2) for n in range(20)]
        await asyncio.gather(*(producer.send(message, timeout=TIMEOUT_S) for message in messages))
    assert [sent.body for sent in broker.sent] == [message.body for message in messages]


@pytest.mark.parametrize(
    ("answer", "cause"), [(drop, ConnectionLost), (keep_silent, RequestTimeout), (damaged, HeaderError)]
)
async def test_no_answer_that_can_be_read_means_perhaps(
    answer: Callable[[Connection], RemotingCommand | None], cause: type[GantryError]
) -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [answer] * 3
        with pytest.raises(SendOutcomeUnknown, match="may be stored on broker") as failed:
            await producer.send(MESSAGE, timeout=0.5 if answer is keep_silent else TIMEOUT_S)
        assert isinstance(failed.value.__cause__, cause)
        assert failed.value.address == broker.address
        assert failed.value.__notes__[-1].startswith(f"tried {1 if answer is keep_silent else 3} times")


async def test_a_failed_attempt_is_repeated_with_the_same_id() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [drop, damaged]
        message = Message("topic", b"body", keys="k")
        sending = asyncio.create_task(producer.send(message, timeout=TIMEOUT_S))
        await until(lambda: len(broker.sent) > 0)
        message.properties["KEYS"] = "changed meanwhile"
        result = await sending
    assert {sent.properties["UNIQ_KEY"] for sent in broker.sent} == {result.msg_id}
    assert [sent.properties["KEYS"] for sent in broker.sent] == ["k"] * 3


async def test_a_busy_broker_is_followed_by_another() -> None:
    brokers = [AnsweringBroker("a"), AnsweringBroker("b")]
    async with connected(*brokers) as producer:
        for broker in brokers:
            broker.answers = [busy]
        await producer.send(MESSAGE, timeout=TIMEOUT_S)
        faults = producer.sender.faults
        assert faults is not None
        assert [item.under_way for item in faults.items.values()] == [0, 0]
    assert sorted(len(broker.sent) for broker in brokers) == [1, 2]


async def test_a_refused_message_is_not_repeated() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [refuse]
        with pytest.raises(BrokerError, match="as scripted"):
            await producer.send(MESSAGE, timeout=TIMEOUT_S)
    assert len(broker.sent) == 1


async def test_it_waits_for_a_rate_limit() -> None:
    broker = AnsweringBroker()
    async with connected(broker, retry_times=0) as producer:
        broker.answers = [limited, limited]
        assert (await producer.send(MESSAGE, timeout=TIMEOUT_S)).status is SendStatus.SEND_OK
    assert len(broker.sent) == 3


async def test_an_unconfirmed_message_is_unknown() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answer, broker.more = ResponseCode.FLUSH_SLAVE_TIMEOUT, {UNCONFIRMED_FIELD: "true"}
        with pytest.raises(SendOutcomeUnknown) as failed:
            await producer.send(MESSAGE, timeout=TIMEOUT_S)
    assert failed.value.status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(broker.sent) == 1


async def test_a_message_that_is_not_stored_safely_is_repeated_on_request() -> None:
    broker = AnsweringBroker()
    async with connected(broker, retry_when_not_stored_safely=True) as producer:
        broker.answer = ResponseCode.FLUSH_DISK_TIMEOUT
        assert (await producer.send(MESSAGE, timeout=TIMEOUT_S)).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(broker.sent) == 3


async def test_a_former_master_is_left() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.refuse(ResponseCode.SYSTEM_ERROR, RefusalReason.NOT_MASTER)
        sending = asyncio.create_task(producer.send(MESSAGE, timeout=TIMEOUT_S))
        await until(lambda: len(broker.sent) > 4)
        broker.accept()
        assert (await sending).status is SendStatus.SEND_OK


async def test_a_cancelled_send_leaves_nothing() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [keep_silent]
        sending = asyncio.create_task(producer.send(MESSAGE, timeout=TIMEOUT_S))
        await until(lambda: len(broker.sent) > 0)
        assert pending(producer, broker) == 1
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert pending(producer, broker) == 0
        faults = producer.sender.faults
        assert faults is not None
        assert faults.items["broker"].under_way == 0


async def test_a_closed_producer_sends_nothing() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        pass
    with pytest.raises(ClientClosed):
        await producer.send(MESSAGE)
    assert not broker.sent


async def test_an_illegal_message_is_refused() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        for body, properties in ((b"", {}), ("text", {}), (b"x", {"a": "\1"})):
            message = Message("topic", body, properties=properties)  # type: ignore[arg-type]
            with pytest.raises(IllegalMessage):
                await producer.send(message)
    assert not broker.sent


async def test_brokers_without_a_connection_get_messages() -> None:
    """With one queue on each broker, a skipped queue would always be the same one."""
    brokers = [AnsweringBroker("a"), AnsweringBroker("b")]
    name_server = ScriptedNameServer({})
    async with serving([name_server, *brokers]):
        name_server.routes["topic"] = route_over({broker.name: broker.address for broker in brokers}, 1)
        async with Producer(name_server.address, "producers") as producer:
            for _ in range(6):
                await producer.send(MESSAGE, timeout=TIMEOUT_S)
    assert [len(broker.sent) for broker in brokers] == [3, 3]


async def test_a_new_connection_is_used() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [drop]
        assert (await producer.send(MESSAGE, timeout=TIMEOUT_S)).status is SendStatus.SEND_OK
        await send_directly(producer)


async def test_a_changed_route_is_used_at_once() -> None:
    brokers = former, following = [AnsweringBroker("a"), AnsweringBroker("b")]
    name_server = ScriptedNameServer({})
    async with serving([name_server, *brokers]):
        name_server.routes["topic"] = route_over({"a": former.address}, 1)
        async with Producer(name_server.address, "producers") as producer:
            for _ in range(3):
                await producer.send(MESSAGE, timeout=TIMEOUT_S)
            await send_directly(producer)
            former.sent.clear()
            name_server.routes["topic"] = route_over({"b": following.address}, 1)
            await producer.client.routes.refresh("topic")
            for _ in range(3):
                await producer.send(MESSAGE, timeout=TIMEOUT_S)
            # The master of the broker also moves.
            name_server.routes["topic"] = route_over({"b": former.address}, 1)
            await producer.client.routes.refresh("topic")
            await producer.send(MESSAGE, timeout=TIMEOUT_S)
            await send_directly(producer)
    assert [len(broker.sent) for broker in brokers] == [2, 3]
