"""Cancels a call in every turn of the loop that it lives through."""

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
    """Whether it was cancelled: it had not ended after so many turns of the loop.

    What is cancelled ends by CancelledError, what isn't by no error.
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
    """1, 2, 3, ... and farther apart later. What is cancelled in turn 0 has not begun."""
    turn = 1
    while True:
        yield turn
        turn += 1 + turn // 10


async def in_every_turn(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Calls `attempt` with one turn after the other, until it says that nothing was cancelled any more."""
    for turn in turns():
        if not await attempt(turn):
            return


async def cancel_at_every_turn(
    new: Callable[[], AbstractAsyncContextManager[C]],
    call: Callable[[C], Coroutine[Any, Any, object]],
    still_works: Callable[[C], Awaitable[object]],
) -> None:
    """Cancels `call` after 1, 2, 3, ... turns, until it isn't cancelled any more.

    Each time it is that of another object, which `new` makes and opens; which works afterwards, as `still_works` tries,
    and leaves nothing behind when it is closed. Python warns of nothing.
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

    # What other tests left behind is found before, and isn't told here.
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        await in_every_turn(attempt)
        gc.collect()
    assert not told, [str(warning.message) for warning in told]
