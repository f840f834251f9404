"""Cancels a call in every event-loop iteration of its execution."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from leftovers import nothing_left

C = TypeVar("C")


async def cancelled_after(turns: int, work: Coroutine[Any, Any, object]) -> bool:
    """Starts `work` and cancels it after `turns` iterations.

    Returns true if it was cancelled, false if it had ended before.

    A cancelled call must end with CancelledError, and any other call without an error.
    """
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    was_cancelled = task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if was_cancelled:
        assert isinstance(outcome, asyncio.CancelledError), f"cancelled in turn {turns}, it ended with {outcome!r}"
    elif isinstance(outcome, BaseException):
        raise outcome
    return was_cancelled


def turns() -> Iterator[int]:
    """Yields 1, 2, 3, ... with growing distances. A task that is cancelled in iteration 0 has not started."""
    turn = 1
    while True:
        yield turn
        turn += 1 + turn // 10


async def in_every_turn(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Calls `attempt` with one iteration after the other, until it returns false because nothing was cancelled."""
    for turn in turns():
        if not await attempt(turn):
            return


async def cancel_at_every_turn(
    new: Callable[[], AbstractAsyncContextManager[C]],
    call: Callable[[C], Coroutine[Any, Any, object]],
    still_works: Callable[[C], Awaitable[object]],
) -> None:
    """Cancels `call` after 1, 2, 3, ... iterations, until it ends before the cancellation.

    Each attempt uses a new object from `new`. After the cancellation, the object must work, as `still_works` checks.
    After its close, it must leave no tasks, threads or sockets, and Python must raise no warnings.
    """

    async def attempt(turn: int) -> bool:
        try:
            async with nothing_left(), new() as client:
                was_cancelled = await cancelled_after(turn, call(client))
                await still_works(client)
            return was_cancelled
        except BaseException as e:
            e.add_note(f"cancelled in turn {turn}")
            raise

    # Collects the leftovers of other tests first, so that their warnings do not count here.
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        await in_every_turn(attempt)
        gc.collect()
    assert not told, [str(warning.message) for warning in told]
