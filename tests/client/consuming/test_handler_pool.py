from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from constants import change_constant
from records import message_at
from wait_until import until

from gantrymq.client.consuming.handler_pool import MessageHandler, Running, TaskPool, ThreadPool, handler_pool
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.protocol.message import MessageExt, MessageQueue


class Outcomes:
    """Results that a pool reported."""

    def __init__(self) -> None:
        self.by_offset: dict[int, Exception | None] = {}

    def done(self, process_queue: ProcessQueue, message: MessageExt, error: Exception | None) -> None:
        assert message.queue_offset not in self.by_offset
        self.by_offset[message.queue_offset] = error


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def process_queue() -> ProcessQueue:
    return ProcessQueue(MessageQueue("t", "a", 0), 0, FlowLimits())


async def _fail_on_three(message: MessageExt) -> None:
    await asyncio.sleep(0)
    if message.queue_offset == 3:
        raise ValueError("three")


def _fail_on_three_plainly(message: MessageExt) -> None:
    if message.queue_offset == 3:
        raise ValueError("three")


@pytest.mark.parametrize("handler", [_fail_on_three, _fail_on_three_plainly])
async def test_reports_every_message_once(
    handler: MessageHandler, outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    pool = handler_pool(handler, 4, outcomes.done)
    for start in range(0, 100, 10):
        pool.submit(process_queue, [message_at(offset) for offset in range(start, start + 10)])
    await until(lambda: len(outcomes.by_offset) == 100)
    await pool.close(5)
    assert [offset for offset, error in outcomes.by_offset.items() if error] == [3]
    assert isinstance(outcomes.by_offset[3], ValueError)


async def test_tasks_handle_as_many_at_a_time_as_allowed(outcomes: Outcomes, process_queue: ProcessQueue) -> None:
    running = most = 0
    go_on = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    pool = TaskPool(handle, 5, outcomes.done)
    pool.submit(process_queue, [message_at(offset) for offset in range(20)])
    await until(lambda: running == 5)
    go_on.set()
    await until(lambda: len(outcomes.by_offset) == 20)
    assert most == 5


async def test_threads_handle_as_many_at_a_time_as_allowed(outcomes: Outcomes, process_queue: ProcessQueue) -> None:
    meeting = threading.Barrier(5)
    pool = ThreadPool(lambda message: meeting.wait(10), 5, outcomes.done)
    pool.submit(process_queue, [message_at(offset) for offset in range(20)])
    await until(lambda: len(outcomes.by_offset) == 20)
    await pool.close(5)
    assert not any(outcomes.by_offset.values())


async def test_one_slow_message_does_not_hold_up_the_others(outcomes: Outcomes, process_queue: ProcessQueue) -> None:
    go_on = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 0:
            await go_on.wait()

    pool = TaskPool(handle, 2, outcomes.done)
    pool.submit(process_queue, [message_at(offset) for offset in range(200)])
    await until(lambda: len(outcomes.by_offset) == 199)
    go_on.set()
    await until(lambda: len(outcomes.by_offset) == 200)


async def test_skips_messages_of_dropped_queues(outcomes: Outcomes, process_queue: ProcessQueue) -> None:
    handled: list[int] = []

    async def handle(message: MessageExt) -> None:
        handled.append(message.queue_offset)
        process_queue.dropped = True

    pool = TaskPool(handle, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0), message_at(1)])
    await until(lambda: 0 in outcomes.by_offset)
    await pool.close(5)
    assert handled == [0]


async def test_close_waits_for_what_is_under_way_and_begins_nothing(
    outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    begun = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        begun.set()
        await asyncio.sleep(0.05)

    pool = TaskPool(handle, 1, outcomes.done)
    pool.submit(process_queue, [message_at(offset) for offset in range(10)])
    await begun.wait()
    await pool.close(5)
    assert list(outcomes.by_offset) == [0]
    pool.submit(process_queue, [message_at(11)])
    assert not pool._tasks


async def test_close_does_not_wait_for_ever(outcomes: Outcomes, process_queue: ProcessQueue) -> None:
    begun = threading.Event()
    release = threading.Event()

    def hang(message: MessageExt) -> None:
        begun.set()
        release.wait(30)

    pool = ThreadPool(hang, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0)])
    await until(begun.is_set)
    async with asyncio.timeout(5):
        await pool.close(0.05)
    release.set()
    assert not outcomes.by_offset


async def test_a_plain_function_that_makes_a_coroutine_is_an_error(
    outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    pool = handler_pool(lambda message: _fail_on_three(message), 1, outcomes.done)
    pool.submit(process_queue, [message_at(0)])
    await until(lambda: outcomes.by_offset)
    await pool.close(5)
    assert isinstance(outcomes.by_offset[0], TypeError)


async def test_knows_coroutine_functions_in_disguise(outcomes: Outcomes) -> None:
    class Handling:
        async def __call__(self, message: MessageExt) -> None:
            pass

        async def method(self, message: MessageExt) -> None:
            pass

    for handler in (Handling(), Handling().method, partial(_fail_on_three)):
        assert isinstance(handler_pool(handler, 1, outcomes.done), TaskPool)


async def test_the_close_does_not_wait_for_a_handler_that_goes_on(
    outcomes: Outcomes, process_queue: ProcessQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change_constant(monkeypatch, "handler_pool.CANCEL_TIMEOUT_S", 0.05)
    go_on = asyncio.Event()
    cancelled = 0

    async def stubborn(message: MessageExt) -> None:
        nonlocal cancelled
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                cancelled += 1

    pool = TaskPool(stubborn, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0)])
    await until(pool.running)
    await asyncio.wait_for(pool.close(0.05), 5)
    assert cancelled == 1
    assert "still runs" in caplog.text
    go_on.set()
    await until(lambda: not pool.running())


class Odd(BaseException):
    """An exception that is not derived from Exception."""


@pytest.mark.parametrize("error", [Odd, GeneratorExit, asyncio.CancelledError])
async def test_whatever_an_async_handler_raises_is_a_failure(
    error: type[BaseException], outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    async def handle(message: MessageExt) -> None:
        await asyncio.sleep(0)
        if message.queue_offset == 0:
            raise error

    pool = TaskPool(handle, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0), message_at(1)])
    await until(lambda: len(outcomes.by_offset) == 2)
    await pool.close(5)
    assert isinstance(outcomes.by_offset[0], error)
    assert outcomes.by_offset[1] is None


async def test_messages_that_come_in_the_moment_in_which_all_tasks_end(
    outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    """The last task has found an empty queue but is not removed yet. New messages must not wait for the next pull."""

    async def handle(message: MessageExt) -> None:
        pass

    pool = TaskPool(handle, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0)])
    # Runs after the task's only step, and before its done callback.
    asyncio.get_running_loop().call_soon(pool.submit, process_queue, [message_at(1)])
    await until(lambda: len(outcomes.by_offset) == 2)
    await pool.close(5)


async def test_a_task_that_is_cancelled_from_outside_is_replaced(
    outcomes: Outcomes, process_queue: ProcessQueue
) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 0:
            await asyncio.Event().wait()

    pool = TaskPool(handle, 1, outcomes.done)
    pool.submit(process_queue, [message_at(0), message_at(1)])
    await until(pool.running)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await until(lambda: len(outcomes.by_offset) == 2)
    # Also cancels a task that has not started yet.
    pool.submit(process_queue, [message_at(2)])
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await until(lambda: len(outcomes.by_offset) == 3)
    await pool.close(5)
    assert isinstance(outcomes.by_offset[0], asyncio.CancelledError)
    assert outcomes.by_offset[1] is outcomes.by_offset[2] is None


@pytest.mark.parametrize("handler", [_fail_on_three, _fail_on_three_plainly])
async def test_what_fails_after_a_handler_ends_nothing(
    handler: MessageHandler, process_queue: ProcessQueue, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def done(process_queue: ProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        told.append(message.queue_offset)
        raise OSError("no disk")

    pool = handler_pool(handler, 1, done)
    pool.submit(process_queue, [message_at(offset) for offset in range(5)])
    await until(lambda: len(told) == 5)
    await pool.close(5)
    assert "no disk" in caplog.text


async def test_a_thread_that_dies_is_replaced_and_its_message_has_failed(
    outcomes: Outcomes, process_queue: ProcessQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ThreadPool(lambda message: None, 1, outcomes.done)
    handled, fails = pool._handled, [True]

    def fail_once(running: Running, error: BaseException | None) -> None:
        if fails:
            fails.pop()
            raise MemoryError
        handled(running, error)

    monkeypatch.setattr(pool, "_handled", fail_once)
    pool.submit(process_queue, [message_at(0), message_at(1)])
    await until(lambda: len(outcomes.by_offset) == 2)
    await pool.close(5)
    assert isinstance(outcomes.by_offset[0], MemoryError)
    assert outcomes.by_offset[1] is None
    assert "the thread gantrymq-handler-0 died" in caplog.text


async def test_no_handler_gets_a_message_of_a_queue_that_was_dropped_before() -> None:
    """After a queue is dropped, it moves to another consumer as soon as no handler runs."""
    asked, go_on, begun, end = (threading.Event() for _ in range(4))

    class Slow(ProcessQueue):
        """A queue whose `dropped` property is slow."""

        @property
        def dropped(self) -> bool:
            was_dropped = self._dropped
            asked.set()
            go_on.wait(0.2)
            return was_dropped

        @dropped.setter
        def dropped(self, dropped: bool) -> None:
            self._dropped = dropped

    def handle(message: MessageExt) -> None:
        begun.set()
        end.wait(20)

    pool = ThreadPool(handle, 1, lambda *told: None)
    queue = Slow(MessageQueue("t", "a", 0), 0, FlowLimits())
    pool.submit(queue, [message_at(0)])
    await until(asked.is_set)
    queue.dropped = True
    runs = bool(pool.running())
    go_on.set()
    end.set()
    await pool.close(5)
    assert begun.is_set() == runs
