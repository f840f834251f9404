"""`SyncProducer.enqueue`: messages of many threads, in batches of one producer."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future, wait

import pytest
from wait_until import wait_until

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.cross_thread_queue import MAX_MESSAGES, CrossThreadQueue
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, ClientError, IllegalMessage, ThreadDied
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncLitePullConsumer, SyncProducer


def producer(name_server: str, **options: object) -> SyncProducer:
    return SyncProducer(Producer(name_server, "producers", linger=0.01, **options))  # type: ignore[arg-type]


def read(name_server: str, topic: str, count: int) -> list[bytes]:
    with SyncLitePullConsumer(LitePullConsumer(name_server, f"{topic}_reader", start_from="earliest")) as reader:
        reader.assign(reader.queues(topic))
        bodies: list[bytes] = []
        for message in reader:
            bodies.append(message.body)
            if len(bodies) == count:
                return bodies
    raise AssertionError


def test_each_message_has_a_result(name_server: str, unique: str) -> None:
    with producer(name_server) as sync:
        queue = sync.queues(unique)[0]
        futures = [sync.enqueue(Message(unique, b"%d" % n), queue=queue) for n in range(500)]
        sync.flush()
        assert all(future.done() for future in futures)
        results = [future.result() for future in futures]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.msg_id for result in results}) == 500
    by_offset = sorted((result.queue_offset, n) for n, result in enumerate(results))
    assert [offset for offset, _ in by_offset] == list(range(500))
    assert read(name_server, unique, 500) == [b"%d" % n for _, n in by_offset]


def test_many_threads_enqueue(name_server: str, unique: str) -> None:
    futures: list[Future[SendResult]] = []
    with producer(name_server) as sync:

        def enqueue(thread: int) -> None:
            futures.extend([sync.enqueue(Message(unique, b"%d %d" % (thread, n))) for n in range(200)])

        threads = [threading.Thread(target=enqueue, args=[n]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # The producer sends all enqueued messages before it closes.
    assert len([future for future in futures if future.result(0).status is SendStatus.SEND_OK]) == 800
    assert len(set(read(name_server, unique, 800))) == 800


def test_an_illegal_message_fails_its_future_alone(
    name_server: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    with producer(name_server) as sync:
        futures = [sync.enqueue(Message(unique, body)) for body in (b"1", b"", b"2")]
        sync.flush()
        assert isinstance(futures[1].exception(0), IllegalMessage)
        assert [futures[n].result(0).status for n in (0, 2)] == [SendStatus.SEND_OK] * 2
    assert "can't be enqueued: the message body is empty" in caplog.text


def test_without_linger_there_are_no_batches(name_server: str, unique: str) -> None:
    with SyncProducer(Producer(name_server, "producers")) as sync:
        assert isinstance(sync.enqueue(Message(unique, b"x")).exception(10), ClientError)


def test_it_needs_a_started_producer(name_server: str, unique: str) -> None:
    sync = producer(name_server)
    with pytest.raises(ClientClosed):
        sync.enqueue(Message(unique, b"x"))
    with sync:
        first = sync.enqueue(Message(unique, b"1"))
    with pytest.raises(ClientClosed):
        sync.enqueue(Message(unique, b"x"))
    # It can start again, with another thread.
    with sync:
        second = sync.enqueue(Message(unique, b"2"))
    assert [future.result(0).status for future in (first, second)] == [SendStatus.SEND_OK] * 2


class Enqueues(Producer):
    """A producer whose `enqueue` waits until `is_open` is set."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.bodies: list[bytes] = []

    async def enqueue(self, message: Message, **more: object) -> asyncio.Future[SendResult]:
        self.bodies.append(message.body)
        while not self.is_open.is_set():
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop().create_future()


def test_threads_wait_while_the_queue_is_full() -> None:
    count = MAX_MESSAGES + 6
    sends = Enqueues()
    with LoopThread("producer") as thread:
        queue = CrossThreadQueue(sends, thread)
        added: list[int] = []

        def add() -> None:
            for n in range(count):
                queue.add(Message("t", b"%d" % n), None, 3.0)
                added.append(n)

        adding = threading.Thread(target=add)
        adding.start()
        # One message is in `enqueue`, and MAX_MESSAGES wait.
        wait_until(lambda: len(added) == MAX_MESSAGES + 1)
        adding.join(0.3)
        assert (adding.is_alive(), len(added)) == (True, MAX_MESSAGES + 1)
        sends.is_open.set()
        adding.join(20)
        assert added == list(range(count))
        wait_until(lambda: len(sends.bodies) == count)
    assert sends.bodies == [b"%d" % n for n in range(count)]


def test_a_cancelled_message_is_not_sent() -> None:
    sends = Enqueues()
    with LoopThread("producer") as thread:
        queue = CrossThreadQueue(sends, thread)
        queue.add(Message("t", b"1"), None, 3.0)
        wait_until(lambda: sends.bodies)
        assert queue.add(Message("t", b"2"), None, 3.0).cancel()
        queue.add(Message("t", b"3"), None, 3.0)
        sends.is_open.set()
        wait_until(lambda: len(sends.bodies) == 2)
    assert sends.bodies == [b"1", b"3"]


def test_a_message_that_is_cancelled_in_flight(name_server: str, unique: str) -> None:
    """`wait` returns for it, although it may be sent."""
    with producer(name_server) as sync:
        sync.enqueue(Message(unique, b"first")).result(20)
        future = sync.enqueue(Message(unique, b"x"))
        future.cancel()
        assert not wait([future], timeout=20).not_done


@pytest.mark.filterwarnings("error")
def test_a_second_close(name_server: str, unique: str) -> None:
    with producer(name_server) as sync:
        future = sync.enqueue(Message(unique, b"x"))
        sync.close()
    sync.close()
    assert future.result(0).status is SendStatus.SEND_OK
    gc.collect()


def test_futures_end_with_the_thread() -> None:
    sends = Enqueues()
    thread = LoopThread("producer")
    thread.start()
    queue = CrossThreadQueue(sends, thread)
    futures = [queue.add(Message("t", b"%d" % n), None, 3.0) for n in range(3)]
    wait_until(lambda: sends.bodies)
    thread.stop()
    assert not wait(futures, timeout=10).not_done
    with pytest.raises(ThreadDied):
        queue.add(Message("t", b"x"), None, 3.0)


def test_futures_fail_when_the_thread_dies() -> None:
    sends = Enqueues()
    thread = LoopThread("producer")
    thread.start()
    queue = CrossThreadQueue(sends, thread)
    future = queue.add(Message("t", b"1"), None, 3.0)
    wait_until(lambda: sends.bodies)

    def die() -> None:
        raise SystemExit

    thread.call_soon(die)
    assert isinstance(future.exception(10), ThreadDied)
    with pytest.raises(ThreadDied):
        queue.add(Message("t", b"x"), None, 3.0)
    thread.stop()
