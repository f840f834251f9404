"""`SyncProducer.send`: calls of many threads, whose first attempts need no task."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from functools import partial

import pytest
from scripted_producer import AnsweringBroker, keep_silent, scripted_cluster
from wait_until import until

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing import cross_thread_sends
from gantrymq.client.producing.cross_thread_sends import CrossThreadSend, CrossThreadSends
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.sender import Sender
from gantrymq.errors import BrokerError, ClientClosed, IllegalMessage, SendOutcomeUnknown
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.remoting.connection import Connection
from gantrymq.sync import SyncProducer

MESSAGE = Message("topic", b"body")
#: Longer than a loaded machine needs.
TIMEOUT_S = 60.0


def send(producer: SyncProducer, message: Message = MESSAGE) -> SendStatus:
    return producer.send(message, timeout=TIMEOUT_S).status


async def sender_of(producer: Producer) -> Sender:
    return producer.sender


@asynccontextmanager
async def connected(broker: AnsweringBroker) -> AsyncIterator[SyncProducer]:
    """Yields a producer with a route and a connection."""
    async with scripted_cluster(broker) as address:
        producer = SyncProducer(Producer(address, "producers"))
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(send, producer)
            broker.sent.clear()
            yield producer
        finally:
            await asyncio.to_thread(producer.close)


async def test_each_thread_gets_its_results_in_order() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        results: dict[int, list[str]] = {}

        def send_some(number: int) -> None:
            messages = [Message("topic", b"%d %d" % (number, n)) for n in range(50)]
            results[number] = [producer.send(message, timeout=TIMEOUT_S).msg_id for message in messages]

        await asyncio.gather(*(asyncio.to_thread(send_some, number) for number in range(4)))
    assert len(broker.sent) == 200
    for number, ids in results.items():
        own = [sent for sent in broker.sent if sent.body.startswith(b"%d " % number)]
        assert [sent.body for sent in own] == [b"%d %d" % (number, n) for n in range(50)]
        assert [sent.properties["UNIQ_KEY"] for sent in own] == ids


async def test_a_failed_attempt_is_repeated() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [Connection.abort, lambda connection: RemotingCommand.response(ResponseCode.SYSTEM_BUSY)]
        assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
    assert len(broker.sent) == 3
    assert len({sent.properties["UNIQ_KEY"] for sent in broker.sent}) == 1


async def test_errors_are_raised_in_the_callers_thread() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        with pytest.raises(IllegalMessage):
            await asyncio.to_thread(send, producer, Message("topic", b""))
        broker.answer = ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError):
            await asyncio.to_thread(send, producer)
    assert len(broker.sent) == 1


async def test_a_close_ends_pending_sends() -> None:
    broker = AnsweringBroker()
    async with connected(broker) as producer:
        broker.answers = [keep_silent]
        sending = asyncio.create_task(asyncio.to_thread(send, producer))
        await until(lambda: len(broker.sent) > 0)
        await asyncio.to_thread(producer.close)
        with pytest.raises((ClientClosed, SendOutcomeUnknown)):
            await sending
        with pytest.raises(ClientClosed):
            await asyncio.to_thread(send, producer)


async def test_a_cancelled_send_leaves_nothing() -> None:
    broker = AnsweringBroker()
    async with scripted_cluster(broker) as address:
        producer = Producer(address, "producers")
        with LoopThread("test", producer.close) as thread:
            await asyncio.wrap_future(thread.submit(producer.start()))
            await asyncio.wrap_future(thread.submit(producer.send(MESSAGE, timeout=TIMEOUT_S)))
            sends = CrossThreadSends(producer, thread)
            broker.answers = [keep_silent]
            broker.sent.clear()
            future = sends.add(MESSAGE, TIMEOUT_S)
            await until(lambda: len(broker.sent) > 0)
            sender = await asyncio.wrap_future(thread.submit(sender_of(producer)))
            connection = sender.client.remoting.open_connection(broker.address)
            assert connection is not None
            await until(lambda: len(connection.pending) == 1)
            sends.cancel(future)
            with pytest.raises(CancelledError):
                future.result()
            await until(lambda: len(connection.pending) == 0)
            assert sender.faults is not None
            assert sender.faults.items["broker"].under_way == 0
            await asyncio.wrap_future(thread.submit(producer.close()))


async def test_waiting_calls_are_sent_in_order() -> None:
    broker = AnsweringBroker()
    async with scripted_cluster(broker) as address:
        producer = Producer(address, "producers")
        with LoopThread("test", producer.close) as thread:
            await asyncio.wrap_future(thread.submit(producer.start()))
            await asyncio.wrap_future(thread.submit(producer.send(MESSAGE, timeout=TIMEOUT_S)))
            sends = CrossThreadSends(producer, thread)
            free = threading.Event()
            thread.call_soon(free.wait)
            futures = [sends.add(Message("topic", b"%d" % n), TIMEOUT_S) for n in range(20)]
            free.set()
            for future in futures:
                assert (await asyncio.to_thread(future.result)).status is SendStatus.SEND_OK
            await asyncio.wrap_future(thread.submit(producer.close()))
    assert [sent.body for sent in broker.sent[1:]] == [b"%d" % n for n in range(20)]


class InterruptedThread(LoopThread):
    """Its next `call_soon` calls `interruption` and is interrupted."""

    interruption: Callable[[], object] | None = None

    def call_soon(self, callback: Callable[[], object]) -> None:
        if self.interruption is not None:
            interruption, self.interruption = self.interruption, None
            interruption()
            raise KeyboardInterrupt
        super().call_soon(callback)


async def test_an_interrupted_call_does_not_stop_those_of_other_threads() -> None:
    broker = AnsweringBroker()
    async with scripted_cluster(broker) as address:
        producer = Producer(address, "producers")
        with InterruptedThread("test", producer.close) as thread:
            await asyncio.wrap_future(thread.submit(producer.start()))
            await asyncio.wrap_future(thread.submit(producer.send(MESSAGE, timeout=TIMEOUT_S)))
            broker.sent.clear()
            sends = CrossThreadSends(producer, thread)
            # The other call comes before the interruption, and therefore does not wake the loop.
            thread.interruption = partial(sends.add, Message("topic", b"other"), TIMEOUT_S)
            with pytest.raises(KeyboardInterrupt):
                sends.add(Message("topic", b"interrupted"), TIMEOUT_S)
            await until(lambda: len(broker.sent) == 1)
            sends.add(Message("topic", b"later"), TIMEOUT_S)
            await until(lambda: len(broker.sent) == 2)
            await asyncio.wrap_future(thread.submit(producer.close()))
    assert [sent.body for sent in broker.sent] == [b"other", b"later"]


def has_ended(call: CrossThreadSend) -> bool:
    """Returns whether `result` ends with the call's error. Otherwise it waits for ever."""
    errors: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(IllegalMessage) as raised:
            call.result()
        errors.append(raised.value)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(5)
    return len(errors) == 1


def test_a_call_ends_although_a_callback_fails() -> None:
    def fail(call: CrossThreadSend) -> None:
        raise RuntimeError("callback")

    call = CrossThreadSend(MESSAGE, TIMEOUT_S)
    call.add_done_callback(fail)
    with pytest.raises(RuntimeError, match="callback"):
        call.set_exception(IllegalMessage("first"))
    assert has_ended(call)


class TakenByAnother(deque[object]):
    """Another thread takes each item between a check for items and `popleft`. Without the GIL, this is possible."""

    def popleft(self) -> object:
        self.clear()
        return super().popleft()


def test_a_call_ends_although_another_thread_takes_its_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_thread_sends, "deque", TakenByAnother)
    call = CrossThreadSend(MESSAGE, TIMEOUT_S)
    ended: list[CrossThreadSend] = []
    call.add_done_callback(ended.append)
    call.set_exception(IllegalMessage("first"))
    assert has_ended(call)
    assert not ended


def test_the_first_outcome_of_a_call_counts() -> None:
    call = CrossThreadSend(MESSAGE, TIMEOUT_S)
    ended: list[CrossThreadSend] = []
    call.add_done_callback(ended.append)
    assert not call.done()
    call.set_exception(IllegalMessage("first"))
    assert not call.cancel()
    call.add_done_callback(ended.append)
    assert call.done()
    assert not call.cancelled()
    assert ended == [call, call]
    with pytest.raises(IllegalMessage, match="first"):
        call.result()


def test_a_cancelled_call_has_no_result() -> None:
    call = CrossThreadSend(MESSAGE, TIMEOUT_S)
    assert call.cancel()
    call.set_exception(IllegalMessage("late"))
    assert call.cancelled()
    assert not call.set_running_or_notify_cancel()
    with pytest.raises(CancelledError):
        call.result()


async def test_the_sends_of_a_stopped_thread_are_cancelled() -> None:
    broker = AnsweringBroker()
    async with scripted_cluster(broker) as address:
        producer = Producer(address, "producers")
        with LoopThread("test", producer.close) as thread:
            await asyncio.wrap_future(thread.submit(producer.start()))
            await asyncio.wrap_future(thread.submit(producer.send(MESSAGE, timeout=TIMEOUT_S)))
            sends = CrossThreadSends(producer, thread)
            broker.answers = [keep_silent]
            broker.sent.clear()
            call = sends.add(MESSAGE, TIMEOUT_S)
            await until(lambda: len(broker.sent) > 0)
            await asyncio.to_thread(thread.stop)
            with pytest.raises(CancelledError):
                call.result()
