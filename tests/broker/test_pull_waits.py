"""Waiting pulls are answered in time slices."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.pull.long_polling import SLICE_S, LongPolling, WaitingPull

COUNT = 300
WORK_S = 0.001


class Queue:
    topic = "orders"


class Connection:
    """A peer's connection, without a peer."""


def pull_of(connection: Any, queue: Any, deadline: float) -> WaitingPull:
    nothing = cast(Any, None)
    return WaitingPull(connection, nothing, nothing, queue, nothing, deadline, 0)


async def longest_iteration() -> float:
    """Returns the longest CPU time of an event-loop iteration until this task is cancelled, in seconds."""
    longest, last = 0.0, time.thread_time()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest


@pytest.mark.parametrize("event", ["message", "expiry", "rejection", "stop"])
async def test_many_pulls_do_not_stop_the_event_loop(event: str) -> None:
    answered: list[WaitingPull] = []

    def retry(pull: WaitingPull, expired: bool) -> None:
        assert expired == (event != "message")
        ends = time.thread_time() + WORK_S
        while time.thread_time() < ends:
            pass
        answered.append(pull)

    jobs = Jobs()
    polling = LongPolling(retry, jobs)
    await polling.start()
    queue = cast(Any, Queue())
    now = asyncio.get_running_loop().time()
    connections = [Connection(), Connection()]
    pulls = [pull_of(connections[n % 2], queue, now - 5 if event == "expiry" else now + 60) for n in range(COUNT)]
    for pull in pulls:
        polling.hold(pull)
    watch = asyncio.create_task(longest_iteration())
    await asyncio.sleep(0)
    if event == "message":
        polling.message_arrived(queue)
    elif event == "rejection":
        polling.answer_all()
    elif event == "stop":
        await polling.stop()
    await until(lambda: len(answered) == COUNT)
    watch.cancel()
    # Connections take turns, and each gets its responses in order.
    for connection in connections:
        own = [pull for pull in pulls if pull.connection is connection]
        assert [pull for pull in answered if pull.connection is connection] == own
    assert await watch < COUNT * WORK_S / 3
    if event != "stop":
        await polling.stop()


async def test_a_pull_whose_connection_closes_meanwhile_is_not_answered() -> None:
    answered: list[Any] = []

    def retry(pull: WaitingPull, expired: bool) -> None:
        time.sleep(2 * SLICE_S)
        answered.append(pull.connection)

    polling = LongPolling(retry, Jobs())
    queue = cast(Any, Queue())
    connections = [cast(Any, Connection()) for _ in range(3)]
    for connection in connections:
        polling.hold(pull_of(connection, queue, asyncio.get_running_loop().time() + 60))
    polling.answer_all()
    assert answered == connections[:1]
    polling.connection_closed(connections[1])
    await until(lambda: len(polling) == 0)
    await polling.stop()
    assert answered == [connections[0], connections[2]]


async def test_pulls_that_wait_again_are_queued_once() -> None:
    """A filter rejects all messages, and messages arrive faster than the pulls are tried."""
    tries = 0

    def retry(pull: WaitingPull, expired: bool) -> None:
        nonlocal tries
        tries += 1
        time.sleep(SLICE_S / 4)
        if not expired:
            polling.hold(pull)

    polling = LongPolling(retry, Jobs())
    queue = cast(Any, Queue())
    connection = cast(Any, Connection())
    for _ in range(20):
        polling.hold(pull_of(connection, queue, asyncio.get_running_loop().time() + 60))
    for _ in range(50):
        polling.message_arrived(queue)
        await asyncio.sleep(0)
    assert len(polling) == 20
    # Every pull is tried at most once more after the last arrival.
    before = tries
    await until(lambda: tries - before <= 20 and not polling.has_backlog)
    assert tries - before <= 20
    await polling.stop()


async def test_a_connection_with_one_pull_does_not_wait_for_all_pulls_of_another() -> None:
    answered: list[Any] = []

    def retry(pull: WaitingPull, expired: bool) -> None:
        time.sleep(SLICE_S / 2)
        answered.append(pull.connection)

    polling = LongPolling(retry, Jobs())
    busy, other = cast(Any, Connection()), cast(Any, Connection())
    queues = [cast(Any, Queue()), cast(Any, Queue())]
    deadline = asyncio.get_running_loop().time() + 60
    for _ in range(40):
        polling.hold(pull_of(busy, queues[0], deadline))
    polling.hold(pull_of(other, queues[1], deadline))
    for queue in queues:
        polling.message_arrived(queue)
    await until(lambda: other in answered)
    assert len(answered) < 10
    await polling.stop()
