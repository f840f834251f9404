"""The one way in which tests wait for a state: ask again until it is there, with a bound."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

TIMEOUT_S = 20.0
_INTERVAL_S = 0.005


async def until(condition: Callable[[], T | Awaitable[T]], timeout_s: float = TIMEOUT_S) -> T:
    """Waits for what is reached in this event loop; returns the first true answer, fails when none comes in time.

    `condition` may be a coroutine function; one that doesn't answer in time is cancelled.
    """
    answer: object = "no answer"
    deadline = time.monotonic() + timeout_s
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while True:
                result = condition()
                answer = await result if inspect.isawaitable(result) else result
                if answer:
                    return cast(T, answer)
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(_INTERVAL_S)
    except TimeoutError:
        # Or it is the condition's own.
        if not limit.expired():
            raise
    raise AssertionError(_too_late(condition, timeout_s, answer))


def wait_until(condition: Callable[[], T], timeout_s: float = TIMEOUT_S) -> T:
    """Waits for what another thread or process reaches; returns the first true answer, fails when none comes in time.

    When it can't come any more (the process has ended), `condition` had better raise than answer False.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_too_late(condition, timeout_s, answer))
        time.sleep(_INTERVAL_S)
    return answer


def _too_late(condition: Callable[[], object], timeout_s: float, answer: object) -> str:
    code = getattr(condition, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"not reached in {timeout_s:g} s; the condition{where} said last: {answer!r}"
