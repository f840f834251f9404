"""Helpers with which tests wait for a state: they poll a condition until a timeout."""

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
    """Polls a condition in this event loop and returns its first true value.

    `condition` may be a coroutine function, which is cancelled at the timeout.

    Raises:
        AssertionError: The condition is not true within `timeout_s` seconds.
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
        # Otherwise the condition itself raised the error.
        if not limit.expired():
            raise
    raise AssertionError(_too_late(condition, timeout_s, answer))


def wait_until(condition: Callable[[], T], timeout_s: float = TIMEOUT_S) -> T:
    """Polls a condition that depends on another thread or process, and returns its first true value.

    If the state can no longer be reached, for example because the process has ended, `condition` should raise.

    Raises:
        AssertionError: The condition is not true within `timeout_s` seconds.
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
