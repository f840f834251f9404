"""The blocking API against a cluster."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from internals import thread_of
from wait_until import wait_until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import ClientClosed, ClientError, GantryError, IllegalMessage, ThreadDied
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.sync import SyncLitePullConsumer, SyncProducer, SyncPushConsumer, SyncSimpleConsumer


def test_send_and_receive(name_server: str, unique: str) -> None:
    got = threading.Semaphore(0)

    def handle(message: MessageExt) -> None:
        got.release()

    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"1"))
        producer.send_batch([Message(unique, b"2"), Message(unique, b"3")])
        producer.send(Message(unique, b"4"), select=select_by_hash("key"))
        producer.send_oneway(Message(unique, b"5"))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: producer.send(Message(unique, b"%d" % n)), range(6, 21)))
        with pytest.raises(IllegalMessage):
            producer.send(Message(unique, b""))
        queues = producer.queues(unique)

    consumer = PushConsumer(name_server, unique, handle, start_from="earliest")
    consumer.subscribe(unique)
    with SyncPushConsumer(consumer):
        for _ in range(20):
            assert got.acquire(timeout=20)

    reader = LitePullConsumer(name_server, f"{unique}_reader", start_from="earliest")
    with SyncLitePullConsumer(reader) as lite:
        lite.assign(lite.queues(unique))
        assert set(lite.queues(unique)) == set(queues)
        bodies = set()
        for message in lite:
            bodies.add(message.body)
            if len(bodies) == 20:
                break
        lite.commit()
        assert sum(lite.committed(queue) or 0 for queue in queues) == 20
        assert sum(lite.end_offset(queue) for queue in queues) == 20
        lite.seek(queues[0], 1)
        assert lite.position(queues[0]) == 1
        lite.seek_to_end(queues[1])
        lite.seek_to_begin(queues[2])
        assert lite.poll()
    assert bodies == {b"%d" % n for n in range(1, 21)}


def test_consumers_tell_how_they_are(name_server: str, topic: str, unique: str) -> None:
    lite = SyncLitePullConsumer(LitePullConsumer(name_server, f"{unique}_lite"))
    push = SyncPushConsumer(PushConsumer(name_server, f"{unique}_push", lambda message: None))
    for consumer in (lite, push):
        consumer.subscribe(topic)
        assert not consumer.health().is_open
        assert not consumer.assignment
        # Each start uses another event loop.
        for _ in range(2):
            with consumer:
                queues = consumer.wait_assigned()
                assert queues <= consumer.assignment
                wait_until(lambda consumer=consumer: len(consumer.wait_assigned()) == 4)  # type: ignore[misc]
                wait_until(lambda consumer=consumer: consumer.health().is_ready)  # type: ignore[misc]
                assert consumer.lag().keys() >= queues
    with lite:
        queues = lite.wait_assigned()
        lite.pause(queues)
        assert lite.paused == queues


def test_what_is_told_of_queues_may_use_the_consumer(name_server: str, topic: str, unique: str) -> None:
    """In the client's own thread, the callback would block itself."""
    with SyncProducer(Producer(name_server, "producers")) as producer:
        for number in range(8):
            producer.send(Message(topic, b"%d" % number))
    told: list[str] = []

    def to_begin(queues: set[MessageQueue]) -> None:
        for queue in queues:
            consumer.seek_to_begin(queue)
        told.append("assigned")

    def revoked(queues: set[MessageQueue]) -> None:
        told.append("revoked")

    inner = LitePullConsumer(name_server, unique, start_from="latest", on_assigned=to_begin, on_revoked=revoked)
    inner.subscribe(topic)
    consumer = SyncLitePullConsumer(inner)
    with consumer:
        bodies: set[bytes] = set()
        wait_until(lambda: bodies.update(message.body for message in consumer.poll(timeout=0.2)) or len(bodies) == 8)
    assert told[0] == "assigned"
    assert told[-1] == "revoked"


def test_queues_are_revoked_after_the_callback_that_assigned_them(name_server: str, topic: str, unique: str) -> None:
    told: list[str] = []
    entered, closed = threading.Event(), threading.Event()

    def assigned(queues: set[MessageQueue]) -> None:
        entered.set()
        # Takes half a second if the close waits for it.
        closed.wait(timeout=0.5)
        told.append("assigned")

    def revoked(queues: set[MessageQueue]) -> None:
        told.append("revoked")
        closed.set()

    consumer = SyncLitePullConsumer(LitePullConsumer(name_server, unique, on_assigned=assigned, on_revoked=revoked))
    consumer.subscribe(topic)
    consumer.start()
    assert entered.wait(timeout=20)
    consumer.close()
    assert told == ["assigned", "revoked"]


def test_callbacks_of_a_consumer_that_starts_again(name_server: str, topic: str, unique: str) -> None:
    """Each start has its own event loop, and the former one is closed."""
    told: list[str] = []
    consumer = SyncLitePullConsumer(
        LitePullConsumer(
            name_server,
            unique,
            on_assigned=lambda queues: told.append("assigned"),
            on_revoked=lambda queues: told.append("revoked"),
        )
    )
    consumer.subscribe(topic)
    for times in (1, 2):
        with consumer:
            wait_until(lambda times=times: told.count("assigned") == times)  # type: ignore[misc]
    assert told == ["assigned", "revoked"] * 2


def test_pop_and_subscriptions_that_change(name_server: str, unique: str) -> None:
    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"1"))
    consumer = SyncSimpleConsumer(SimpleConsumer(name_server, unique))
    with consumer:
        consumer.subscribe(unique)
        (message,) = consumer.receive()
        consumer.change_invisible_time(message, 60)
        consumer.ack(message)
        consumer.unsubscribe(unique)
        with pytest.raises(ClientError, match="subscribe"):
            consumer.receive()


def test_works_between_start_and_close(name_server: str) -> None:
    producer = SyncProducer(Producer(name_server, "producers"))
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))
    producer.start()
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))
    assert not [thread for thread in threading.enumerate() if thread.name == "gantrymq-client"]


async def test_does_not_need_the_callers_loop(name_server: str, unique: str) -> None:
    def send() -> None:
        with SyncProducer(Producer(name_server, "producers")) as producer:
            producer.send(Message(unique, b"x"))

    await asyncio.to_thread(send)


def test_a_close_ends_the_calls_of_other_threads(name_server: str, topic: str, unique: str) -> None:
    consumer = SyncSimpleConsumer(SimpleConsumer(name_server, unique))
    consumer.subscribe(topic)
    consumer.start()
    ended: list[BaseException] = []

    async def for_ever() -> None:
        await asyncio.Event().wait()

    def call(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as e:
            ended.append(e)

    threads = [
        threading.Thread(target=call, args=[lambda: consumer.receive(timeout=60)]),
        threading.Thread(target=call, args=[lambda: consumer._wait(for_ever())]),
    ]
    for thread in threads:
        thread.start()
    while len(threads) > len([thread for thread in threads if thread.is_alive()]):
        pass
    closers = [threading.Thread(target=consumer.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in [*threads, *closers]:
        thread.join(20)
        assert not thread.is_alive()
    assert len(ended) == 2
    assert all(isinstance(error, GantryError) for error in ended)
    assert any(isinstance(error, ClientClosed) for error in ended)


def test_calls_that_would_wait_for_themselves_are_refused(name_server: str, unique: str) -> None:
    errors: list[Exception] = []
    done = threading.Event()

    async def handle(message: MessageExt) -> None:
        try:
            consumer.close()
        except ClientError as e:
            errors.append(e)
        done.set()

    inner = PushConsumer(name_server, unique, handle, start_from="earliest")
    inner.subscribe(unique)
    consumer = SyncPushConsumer(inner)
    with SyncProducer(Producer(name_server, "producers")) as producer:
        with pytest.raises(ClientError, match="already started"):
            producer.start()
        producer.send(Message(unique, b"x"))
        with consumer:
            assert done.wait(20)
    assert "wait for itself" in str(errors[0])


def test_a_child_process_has_no_part_in_its_parents_clients(name_server: str, unique: str) -> None:
    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"1"))
        child = os.fork()
        if child == 0:
            try:
                producer.send(Message(unique, b"2"))
            except ClientClosed as e:
                producer.close()
                os._exit(0 if "fork" in str(e) else 2)
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        producer.send(Message(unique, b"3"))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_program_ends_the_consumer_loudly(
    name_server: str, unique: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    ended, again = threading.Event(), threading.Event()

    async def handle(message: MessageExt) -> None:
        if ended.is_set():
            # After a restart of the consumer, the unacknowledged message is redelivered.
            again.set()
            return
        ended.set()
        raise error(3)

    inner = PushConsumer(name_server, unique, handle, start_from="earliest")
    inner.subscribe(unique)
    consumer = SyncPushConsumer(inner)
    consumer.start()
    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"x"))
    assert ended.wait(20)
    thread = thread_of(consumer)
    wait_until(lambda: not thread.is_alive)
    assert "the thread gantrymq-client died" in caplog.text
    # The group has no members left, because the client was closed.
    assert not inner.assignment
    for _ in range(2):
        with pytest.raises(ThreadDied, match=error.__name__):
            consumer.subscribe("another")
    consumer.close()
    consumer.start()
    assert again.wait(20)
    consumer.close()


def test_the_close_tells_of_a_death_that_nobody_has_heard_of(name_server: str, unique: str) -> None:
    consumer = SyncSimpleConsumer(SimpleConsumer(name_server, unique))
    consumer.start()
    thread = thread_of(consumer)

    async def end() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)

    thread.submit(end())
    wait_until(lambda: not thread.is_alive)
    with pytest.raises(ThreadDied):
        consumer.close()
    consumer.close()
