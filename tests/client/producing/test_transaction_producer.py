"""Transactions with scripted checks of the broker. `interop/` tests them with Apache's and this project's broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from constants import change_constant
from scripted_producer import HOST, ProducerBroker, scripted_cluster
from wait_until import until

from gantrymq.client.producing import transaction_producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import BrokerError
from gantrymq.protocol import sys_flag
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import encode_record

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOWN,
)
MESSAGE = Message("topic", b"body", keys="key", delay_level=3)


class Listener:
    """A listener that returns `state` and records its calls."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.executed: list[tuple[Message, Any]] = []
        self.checked: list[MessageExt] = []

    def _say(self) -> LocalTransactionState:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state  # type: ignore[no-any-return]


class PlainListener(Listener):
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        self.executed.append((message, arg))
        return self._say()

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message)
        return self._say()


class AsyncListener(Listener):
    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        self.executed.append((message, arg))
        return self._say()

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message)
        return self._say()


LISTENERS = pytest.mark.parametrize("kind", [PlainListener, AsyncListener])


@LISTENERS
@pytest.mark.parametrize("state", LocalTransactionState)
async def test_the_broker_learns_what_became_of_it(kind: Any, state: LocalTransactionState) -> None:
    broker, listener = ProducerBroker(), kind(state)
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", listener) as producer:
        result, said = await producer.send_in_transaction(MESSAGE, "arg")
        await until(lambda: broker.ends)
        # A broker can only check producers that sent a heartbeat.
        assert broker.heartbeats == 1
    assert said is state
    (half,) = broker.sent
    assert half.header.sys_flag == sys_flag.TRANSACTION_PREPARED
    assert half.properties == {"KEYS": "key", "TRAN_MSG": "true", "PGROUP": "group", "UNIQ_KEY": result.msg_id}
    ((message, arg),) = listener.executed
    assert (message.body, message.properties["UNIQ_KEY"], arg) == (b"body", result.msg_id, "arg")
    ((end, remark),) = broker.ends
    assert (end.topic, end.producer_group, end.msg_id) == ("topic", "group", result.msg_id)
    assert end.commit_or_rollback == {COMMIT: 8, ROLLBACK: 12, UNKNOWN: 0}[state]
    assert end.commit_log_offset == decode_offset_message_id(result.offset_msg_id)[1]
    assert end.tran_state_table_offset == result.queue_offset
    assert (end.from_transaction_check, remark) == (None, None)
    assert MESSAGE.properties == {"KEYS": "key", "DELAY": "3"}


@LISTENERS
@pytest.mark.parametrize("said", [ValueError("no database"), None, "commit"])
async def test_a_listener_that_fails_or_says_nonsense_is_asked_again(
    kind: Any, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", kind(said)) as producer:
        assert (await producer.send_in_transaction(MESSAGE)).state is UNKNOWN
        await until(lambda: broker.ends)
    ((end, remark),) = broker.ends
    assert end.commit_or_rollback == 0
    assert ("no database" in (remark or "")) == isinstance(said, Exception)
    assert "execute_local_transaction" in caplog.text


async def test_a_half_message_that_is_not_safe_is_rolled_back() -> None:
    broker, listener = ProducerBroker(answer=ResponseCode.FLUSH_SLAVE_TIMEOUT), AsyncListener(COMMIT)
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", listener) as producer:
        assert (await producer.send_in_transaction(MESSAGE)).state is ROLLBACK
        await until(lambda: broker.ends)
    assert broker.ends[0][0].commit_or_rollback == 12
    assert not listener.executed


def test_traces_have_javas_names_of_the_states() -> None:
    assert [state.java_name for state in (COMMIT, ROLLBACK, UNKNOWN)] == [
        "COMMIT_MESSAGE",
        "ROLLBACK_MESSAGE",
        "UNKNOW",
    ]


async def test_without_a_half_message_there_is_no_transaction() -> None:
    broker, listener = ProducerBroker(answer=ResponseCode.MESSAGE_ILLEGAL), AsyncListener(COMMIT)
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", listener) as producer:
        with pytest.raises(BrokerError):
            await producer.send_in_transaction(MESSAGE)
    assert not listener.executed
    assert not broker.ends


def check(number: int, topic: str = "topic") -> RemotingCommand:
    """Returns a broker's check request for half message `number`."""
    properties = encode_properties({"UNIQ_KEY": f"KEY{number}", "PGROUP": "group", "REAL_TOPIC": topic})
    record = encode_record(0, 0, number, 100, 0, 1, HOST, 2, HOST, 0, 0, b"half", topic.encode(), properties)
    header = CheckTransactionStateRequestHeader(
        topic=topic, tran_state_table_offset=number, commit_log_offset=100, msg_id=f"KEY{number}", transaction_id="TX"
    )
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, record)


@LISTENERS
@pytest.mark.parametrize("state", LocalTransactionState)
async def test_checks_are_answered(kind: Any, state: LocalTransactionState) -> None:
    broker, listener = ProducerBroker(), kind(state)
    async with (
        scripted_cluster(broker, topics=("ns%topic",)) as address,
        TransactionProducer(address, "group", listener, namespace="ns") as producer,
    ):
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.connection
        for number in range(20):
            broker.connection.send_oneway(check(number, "ns%topic"))
        await until(lambda: len(broker.ends) == 20)
    assert {message.topic for message in listener.checked} == {"topic"}
    ends = sorted((end for end, _ in broker.ends), key=lambda end: end.tran_state_table_offset)
    assert [end.msg_id for end in ends] == [f"KEY{n}" for n in range(20)]
    for end in ends:
        assert (end.topic, end.producer_group, end.transaction_id) == ("ns%topic", "ns%group", "TX")
        assert (end.commit_or_rollback, end.from_transaction_check) == (state.value, True)


class SlowListener(AsyncListener):
    """Commits every checked transaction once `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(COMMIT)
        self.go_on = asyncio.Event()

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        await self.go_on.wait()
        return COMMIT


async def test_checks_are_dropped_while_too_many_are_pending() -> None:
    most = transaction_producer.MAX_CHECKS
    broker, listener = ProducerBroker(), SlowListener()
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", listener) as producer:
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.connection
        for number in range(most + 10):
            broker.connection.send_oneway(check(number))
        # The response shows that the client has read the checks before it.
        await broker.connection.invoke(RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO))
        listener.go_on.set()
        await until(lambda: len(broker.ends) == most)
        broker.connection.send_oneway(check(most + 10))
        await until(lambda: len(broker.ends) > most)
    assert sorted(end.tran_state_table_offset for end, _ in broker.ends) == [*range(most), most + 10]


async def test_large_checks_that_wait_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise two thousand checks of 16 MB each could be pending."""
    listener = SlowListener()
    change_constant(monkeypatch, "transaction_producer.MAX_CHECK_BYTES", 3 * len(check(0).body))
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, TransactionProducer(address, "group", listener) as producer:
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.connection
        for number in range(10):
            broker.connection.send_oneway(check(number))
        await until(lambda: caplog.text.count("dropped: 3 others wait") == 7)
        listener.go_on.set()
        await until(lambda: len(broker.ends) == 3)
        # There is free capacity again.
        broker.connection.send_oneway(check(10))
        await until(lambda: len(broker.ends) == 4)


async def test_ends_are_traced() -> None:
    broker, listener = ProducerBroker(), AsyncListener(ROLLBACK)
    async with (
        scripted_cluster(broker, topics=("topic", "RMQ_SYS_TRACE_TOPIC")) as address,
        TransactionProducer(address, "group", listener, enable_trace=True) as producer,
    ):
        result, _ = await producer.send_in_transaction(MESSAGE)
    lines = broker.sent[1].body.decode().split("\x02")
    assert [line.partition("\x01")[0] for line in lines] == ["Pub", "EndTransaction", ""]
    assert lines[0].split("\x01")[11] == "1"
    assert lines[1].split("\x01")[4:8] == ["topic", result.msg_id, "", "key"]
    assert lines[1].split("\x01")[11:] == ["ROLLBACK_MESSAGE", "false"]
