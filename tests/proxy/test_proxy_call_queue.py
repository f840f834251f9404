"""Order in which calls start: connections alternate, and small calls do not wait for large ones."""

from __future__ import annotations

import asyncio
import time

from calls import RecordedCall
from wait_until import until

from gantrymq.proxy.call import SLICE_S, Slices
from gantrymq.proxy.call_queue import CALL_BYTES, LEAST_ROUND_BYTES, ROUND_BYTES, CallQueue
from gantrymq.proxy.http2.read_slices import ReadSlices

IN_A_ROUND = ROUND_BYTES // CALL_BYTES


class Calls:
    """A queue, and the names of the calls that it has started."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.queue = CallQueue(asyncio.get_running_loop(), ReadSlices())
        self.started: list[str] = []

    def add(self, connection: str, weight: int = CALL_BYTES, *, is_over: bool = False) -> None:
        self.queue.add(connection, _Call(self, connection, weight, is_over))

    async def all_started(self, count: int) -> None:
        await until(lambda: len(self.started) == count)


class _Call:
    def __init__(self, calls: Calls, name: str, weight: int, is_over: bool) -> None:
        self._calls = calls
        self._name = name
        self._is_over = is_over
        self.weight = weight

    def start(self) -> bool:
        if not self._is_over:
            self._calls.started.append(self._name)
            time.sleep(self._calls.step_s)
        return not self._is_over


async def test_calls_start_at_once_as_long_as_they_are_few() -> None:
    calls = Calls()
    for n in range(IN_A_ROUND):
        calls.add(f"{n % 3}")
    assert len(calls.started) == IN_A_ROUND
    calls.add("one more")
    assert len(calls.started) == IN_A_ROUND
    await calls.all_started(IN_A_ROUND + 1)


async def test_a_connection_with_many_calls_leaves_the_others_their_turn() -> None:
    calls = Calls()
    for _ in range(1000):
        calls.add("busy")
    calls.add("modest")
    await calls.all_started(1001)
    # The first calls found an empty queue. From then on, connections alternate.
    assert calls.started.index("modest") == IN_A_ROUND + 1


async def test_small_calls_pass_large_ones() -> None:
    calls = Calls()
    for n in range(50):
        calls.add(f"large {n}", 10 * ROUND_BYTES)
    for n in range(10):
        calls.add(f"small {n}")
    assert calls.started == [f"small {n}" for n in range(10)]
    calls.add("large 0", 2 * ROUND_BYTES)
    await calls.all_started(61)
    assert calls.started[10:] == [*(f"large {n}" for n in range(50)), "large 0"]


async def test_a_large_call_is_not_put_off_for_ever() -> None:
    calls = Calls()
    calls.add("large", 10 * ROUND_BYTES)
    for _ in range(10 * IN_A_ROUND):
        calls.add("busy")
    await until(lambda: "large" in calls.started)
    assert calls.started.index("large") <= 2 * IN_A_ROUND


async def test_calls_that_are_given_up_take_nobody_s_turn() -> None:
    calls = Calls()
    for _ in range(IN_A_ROUND):
        calls.add("first")
    for _ in range(500):
        calls.add("gone", is_over=True)
    calls.add("gone", 10 * ROUND_BYTES, is_over=True)
    calls.add("large", 10 * ROUND_BYTES)
    calls.add("last")
    await calls.all_started(IN_A_ROUND + 2)
    assert calls.started[IN_A_ROUND:] == ["last", "large"]


async def test_a_queue_whose_calls_are_slow_starts_fewer_at_once() -> None:
    calls = Calls(step_s=0.002)
    for _ in range(10 * IN_A_ROUND):
        calls.add("busy")
    at_first = len(calls.started)
    began = len(calls.started)
    least = at_first
    while len(calls.started) < 10 * IN_A_ROUND and least > LEAST_ROUND_BYTES // CALL_BYTES:
        await asyncio.sleep(0)
        if len(calls.started) > began:
            least = min(least, len(calls.started) - began)
            began = len(calls.started)
    assert at_first == IN_A_ROUND
    assert least == LEAST_ROUND_BYTES // CALL_BYTES


async def test_a_long_handler_lets_others_continue() -> None:
    call = RecordedCall()
    other = 0

    async def count() -> None:
        nonlocal other
        while True:
            other += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    seen: list[int] = []

    def work(item: int) -> None:
        time.sleep(1.5 * SLICE_S)
        seen.append(item)

    async for item in Slices(call, range(5)):
        work(item)
    counting.cancel()
    assert seen == [*range(5)]
    assert other >= 4
