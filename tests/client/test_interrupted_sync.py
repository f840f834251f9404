"""Blocking clients that are interrupted as by Ctrl-C: they close or continue, and leave nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from leftovers import _sockets, _threads
from wait_until import wait_until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncProducer, SyncPushConsumer, SyncSimpleConsumer
from gantrymq.testing.processes import ProcessCluster

TOPIC = "interrupted"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        with SyncProducer(Producer(cluster.namesrv_addr, "makers")) as producer:
            producer.send(Message(TOPIC, b"x"))
        yield cluster


@contextmanager
def nothing_left() -> Iterator[None]:
    before = _threads(), _sockets()
    yield
    wait_until(lambda: _threads() <= before[0] and _sockets() <= before[1])


def interrupted_after(seconds: float, work: Callable[[], object]) -> bool:
    """Runs `work` and interrupts it after `seconds`.

    Returns true if it was interrupted, false if it had ended before.

    Interrupts only while it waits, where it spends its time. In some other places, Python itself does not survive an
    interrupt (a `Condition` keeps its lock).
    """
    main = threading.get_ident()
    is_armed = has_ended = False
    goes_on = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Only once: a second signal could arrive while the first one is handled.
        is_first = is_armed and not goes_on.is_set()
        if is_first and frame is not None and frame.f_code is threading.Condition.wait.__code__:
            goes_on.set()
            raise KeyboardInterrupt

    def again() -> None:
        time.sleep(seconds)
        while not goes_on.wait(0.00005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=again)
    thread.start()
    try:
        is_armed = True
        work()
        is_armed, has_ended = False, True
    except KeyboardInterrupt:
        is_armed = False
    finally:
        goes_on.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    return not has_ended


def at_every_time(attempt: Callable[[float], bool]) -> None:
    """Calls `attempt` with 0, 0.1, 0.2, ... ms and growing distances, until nothing is interrupted."""
    seconds = 0.0
    while attempt(seconds):
        seconds = seconds * 1.1 + 0.0001


def handle(message: MessageExt) -> None:
    """Does nothing, in a thread."""


def push(name_server: str) -> SyncPushConsumer:
    consumer = PushConsumer(name_server, "pushed", handle, concurrency=2)
    consumer.subscribe(TOPIC)
    return SyncPushConsumer(consumer)


def simple(name_server: str) -> SyncSimpleConsumer:
    consumer = SimpleConsumer(name_server, "popping")
    consumer.subscribe(TOPIC)
    return SyncSimpleConsumer(consumer)


def producing(name_server: str) -> SyncProducer:
    return SyncProducer(Producer(name_server, "producers", enable_trace=True))


KINDS: dict[str, Callable[[str], Any]] = {"producer": producing, "push": push, "simple": simple}


def use(client: Any) -> None:
    match client:
        case SyncProducer():
            client.send(Message(TOPIC, b"x"))
        case SyncSimpleConsumer():
            client.receive(timeout=0.001)
        case SyncPushConsumer():
            wait_until(lambda: client._client.assignment)


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_that_is_interrupted(kind: str, cluster: ProcessCluster) -> None:
    def attempt(seconds: float) -> bool:
        with nothing_left():
            client = KINDS[kind](cluster.namesrv_addr)
            was_interrupted = interrupted_after(seconds, client.start)
            client.close()
            with client:
                use(client)
        return was_interrupted

    at_every_time(attempt)


@pytest.mark.parametrize("kind", KINDS)
def test_a_close_that_is_interrupted(kind: str, cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    def attempt(seconds: float) -> bool:
        with nothing_left():
            client = KINDS[kind](cluster.namesrv_addr)
            client.start()
            use(client)
            was_interrupted = interrupted_after(seconds, client.close)
            # It is closed, or this call closes it.
            client.close()
            with client:
                pass
        return was_interrupted

    at_every_time(attempt)
    # With -X dev, asyncio also reports slow callbacks.
    told = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not [text for text in told if "took" not in text]


def test_a_call_that_is_interrupted(cluster: ProcessCluster) -> None:
    with nothing_left(), producing(cluster.namesrv_addr) as producer:

        def attempt(seconds: float) -> bool:
            was_interrupted = interrupted_after(seconds, lambda: producer.send(Message(TOPIC, bytes(200_000))))
            producer.send(Message(TOPIC, b"x"))
            return was_interrupted

        at_every_time(attempt)
